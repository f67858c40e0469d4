"""PyTorch models from Python code: a user's factory, torchvision, timm, and networks of the zoo."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec
from tlmd.models import huggingface
from tlmd.models.sources import WrongNumberOfShapes, first_line
from tlmd.models.zoo.catalogue import zoo

_ADVICE = "it must return (module, example inputs)"
_OPERATORS = ("nms", "qnms")


def make(spec: ModelSpec, tell: Callable[[str], None] = lambda _: None) -> tuple[Any, Any]:
    """The module of `spec` in evaluation mode, and its example inputs. Raises `BadInput`.

    `tell` is called with each note for the user.

    Random weights are the same in every process, which compare their outputs. torch's random state
    is not changed.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _make(spec, tell)


def _make(spec: ModelSpec, tell: Callable[[str], None]) -> tuple[Any, Any]:
    source, _, name = spec.name.partition(":")
    if huggingface.is_directory(spec.name):
        if spec.weights:
            raise BadInput(f"{spec.name} has its own weights; leave --weights out")
        path = Path(spec.name).expanduser()
        return huggingface.load_directory(path, spec.task, spec.random_weights, tell)
    if source in ("torchvision", "timm", "hf"):
        makers = {"torchvision": _torchvision, "timm": _timm, "hf": huggingface.random_model}
        module, example = makers[source](name)
    elif name:
        if spec.random_weights:
            raise BadInput(f"{spec.name} makes its own weights; leave --random-weights out")
        module, example = _from_factory(spec.name)
    else:
        # A factory of the zoo makes its inputs itself, so it takes the shape here.
        module, example = zoo()[spec.name].make(_single(spec))
    if spec.weights:
        _load_weights(module, spec.weights)
    return module.eval(), example


def _single(spec: ModelSpec) -> tuple[int, ...] | None:
    shapes = spec.input_shapes
    if shapes is None:
        return None
    if len(shapes) != 1:
        raise WrongNumberOfShapes(spec.name, 1, len(shapes))
    return shapes[0]


def _from_factory(spec: str) -> tuple[Any, Any]:
    """Call the factory ``package.module:function``."""
    module_name, _, attribute = spec.partition(":")
    # Like `python -m`, so that Python finds a factory in the current folder.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        reason = first_line(error)
        raise BadInput(f"cannot import {spec} ({reason}); give package.module:factory") from error
    except Exception as error:
        reason = first_line(error)
        raise BadInput(f"importing {module_name} failed ({reason}); correct that module") from error
    try:
        module, example = factory()
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise BadInput(f"factory {spec} failed ({reason}); {_ADVICE}") from error
    if not callable(getattr(module, "eval", None)):
        raise BadInput(f"factory {spec} returned a {type(module).__name__}; {_ADVICE}")
    return module, example


def _torchvision(name: str) -> tuple[Any, Any]:
    """A network of torchvision with random weights."""
    models = _import_torchvision()
    import torch

    try:
        # Some would download the weights of their backbone; others have none.
        module = models.get_model(name, weights=None, weights_backbone=None)
    except ValueError as error:
        raise BadInput(_unknown("torchvision", name, models.list_models())) from error
    except TypeError:
        module = models.get_model(name, weights=None)
    family = type(module).__module__
    if ".video" in family:
        return module, (torch.randn(1, 3, 16, 224, 224),)
    if ".optical_flow" in family:
        return module, (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128))
    size = 299 if "inception" in name else 224
    return module, (torch.randn(1, 3, size, size),)


def _import_torchvision() -> Any:
    """``torchvision.models``. A build for other hardware lacks operators, which few models need."""
    try:
        import torch

        try:
            import torchvision.models
        except RuntimeError:  # an operator does not exist: declare those that its import names
            make_library: Any = torch.library.Library
            library = make_library("torchvision", "DEF")
            for operator in _OPERATORS:
                library.define(f"{operator}(Tensor dets, Tensor scores, float limit) -> Tensor")
            _KEPT.append(library)
            import torchvision.models
    except ImportError as error:
        raise BadInput("torchvision is not installed; pip install torchvision") from error
    return torchvision.models


_KEPT: list[Any] = []  # declared operators disappear with their library


def _timm(name: str) -> tuple[Any, Any]:
    """A network of timm with random weights."""
    _import_torchvision()
    try:
        import timm
    except ImportError as error:
        raise BadInput("timm is not installed; pip install timm") from error
    import torch

    if not timm.is_model(name):
        raise BadInput(_unknown("timm", name, timm.list_models()))
    module: Any = timm.create_model(name, pretrained=False)
    shape = module.default_cfg.get("input_size", (3, 224, 224))
    return module, (torch.randn(1, *shape),)


def _unknown(source: str, name: str, names: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {source}:{near[0]}?" if near else f"see {source}'s list of models"
    return f"{source} has no model {name!r}; {hint}"


def _load_weights(module: Any, path: str) -> None:
    """Put the weights of a .safetensors file into `module`."""
    import safetensors.torch

    if not path.endswith(".safetensors"):
        raise BadInput(f"--weights {path} is not a .safetensors file; other formats can run code")
    try:
        weights = safetensors.torch.load_file(str(Path(path).expanduser()))
        module.load_state_dict(weights)
    except FileNotFoundError as error:
        raise BadInput(f"no such file: {path}; give the path of a .safetensors file") from error
    except Exception as error:  # a damaged file, or other names or shapes than the module's
        raise BadInput(f"the weights {path} do not fit the model ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:200]
