"""What the lists of networks share: the groups, seeds, random biases and statistics, torchvision.

A list is a module with `NETWORKS`, name -> function that returns ``(module, example)``; the example
is a tuple of positional inputs or a dict of keyword inputs. `benchmarks.networks_x:name` is a
factory that tlmd loads, so each network can also be tuned.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

Example = tuple[Any, ...] | dict[str, Any]
Make = Callable[[], tuple[Any, Example]]

LISTS = {
    "torchvision": "benchmarks.coverage.networks.networks_torchvision",
    "timm": "benchmarks.coverage.networks.networks_timm",
    "transformers": "benchmarks.coverage.networks.networks_transformers",
}
"""Group of PyTorch networks -> the module that lists them."""

ONNX_GROUPS = ("onnx-exported", "onnx-simple", "onnx-node")

_SEED = 0
_SPREAD = 0.1  # standard deviation of random biases, and of gammas around 1
_kept: list[Any] = []


def networks(group: str) -> Mapping[str, Make]:
    """The networks of a group of PyTorch networks."""
    found: Mapping[str, Make] = importlib.import_module(LISTS[group]).NETWORKS
    return found


def factory(listed: Mapping[str, Make], name: str) -> Make:
    """The factory of the network `name`, for a list's ``__getattr__``.

    It always makes the same network, in evaluation mode and with random biases.
    """
    if name not in listed:
        raise AttributeError(f"there is no network {name!r}")

    def make() -> tuple[Any, Example]:
        import torch

        provide_torchvision()
        torch.manual_seed(_SEED)
        module, example = listed[name]()
        return randomise(module.eval()), example

    return make


def provide_torchvision() -> None:
    """Let torchvision be imported where its C++ operators cannot be loaded.

    The torchvision of PyPI is a CUDA build. Beside a CPU build of torch its import fails, because
    it describes operators that are not there; none of the networks uses them.
    """
    import torch

    if _kept:
        return
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:
        make: Any = torch.library.Library
        library = make("torchvision", "DEF")  # its operators go when it goes
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
        importlib.import_module("torchvision")


def randomise(module: Any) -> Any:
    """Give a new network the biases, gammas and statistics that a trained one could have.

    Otherwise many outputs are almost constant, and a wrong program would not be noticed. A
    parameter whose elements are all equal is one that was not drawn at random.
    """
    import torch

    generator = torch.Generator().manual_seed(_SEED)

    def noise(value: Any) -> Any:
        return torch.randn(value.shape, generator=generator).to(value.dtype)

    with torch.no_grad():
        for parameter in module.parameters():
            flat = parameter.reshape(-1)
            if parameter.is_floating_point() and flat.numel() > 1 and bool((flat == flat[0]).all()):
                parameter += _SPREAD * noise(parameter)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer += _SPREAD * noise(buffer)
            elif name.endswith("running_var"):
                buffer *= 1 + _SPREAD * noise(buffer).abs()
    return module
