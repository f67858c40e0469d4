"""A part that PyTorch runs: Python source that calls PyTorch's operators, and its weights.

The source is what torch.fx writes for a graph. Weights are in a file of safetensors.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.fx.graph import CodeGen
from torch.fx.graph_module import _format_import_block
from torch.package.importer import sys_importer

from tlmd.data.errors import BadInput, NotImportable
from tlmd.models.pytorch.tensors import as_tensor

KIND = "torch"
_BUILT_IN = {"aten", "prim", "prims", "higher_order"}  # packages of operators that torch defines
_COMPLEX = "complex "  # before the names of weights that are saved as pairs of real numbers
_HEAD = '"""A part of the model that PyTorch runs; tlmd wrote it. Weights: {weights}."""\n\n'


class TorchProgram:
    """A module that takes and returns flat tensors, such as a graph of torch.fx."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Run it. Arrays of numpy become tensors."""
        with torch.no_grad():
            return list(self._module(*map(as_tensor, values)))

    def save(self, folder: Path, name: str) -> dict[str, Any]:
        """Write source and weights. Raises `NotImportable` for a graph that has no source."""
        assert isinstance(self._module, torch.fx.GraphModule)
        source, weights = folder / f"{name}.py", folder / f"{name}.safetensors"
        source.write_text(_HEAD.format(weights=weights.name) + _source(self._module))
        save_file(dict(_weights(self._module)), weights)
        return {"kind": KIND, "file": source.name, "weights": weights.name}


def load(document: Mapping[str, Any], folder: Path) -> TorchProgram:
    """The program of `save`. Raises `BadInput` if a file is missing or damaged."""
    path = folder / document["file"]
    try:
        spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
        assert spec is not None and spec.loader is not None
        source = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(source)
        weights = load_file(folder / document["weights"])
    except Exception as error:
        raise BadInput(f"cannot load {path} ({error}); tune the model again"[:300]) from error
    root = _Module(None)
    for place, forward in source.FORWARDS.items():
        _put(root, place, _Module(forward)) if place else root.use(forward)
    for place, tensor in weights.items():
        pairs = place.startswith(_COMPLEX)
        value = torch.view_as_complex(tensor) if pairs else tensor
        _put(root, place.removeprefix(_COMPLEX), value)
    return TorchProgram(root)


class _Module(torch.nn.Module):
    """A module whose `forward` is a function of a file."""

    def __init__(self, forward: Callable[..., Any] | None) -> None:
        super().__init__()
        self._function = forward

    def use(self, forward: Callable[..., Any]) -> None:
        self._function = forward

    def forward(self, *values: Any) -> Any:
        assert self._function is not None
        return self._function(self, *values)


def _put(root: torch.nn.Module, place: str, value: Any) -> None:
    """Make `value` the attribute at a path such as ``model.linear.weight``."""
    *path, last = place.split(".")
    for name in path:
        if not hasattr(root, name):
            setattr(root, name, _Module(None))
        root = getattr(root, name)
    setattr(root, last, value)


def _source(module: torch.fx.GraphModule) -> str:
    """The source of a graph and of those that its operators call, such as a branch."""
    texts, names, packages = [], [], set()
    bindings: dict[str, Any] = {}
    for number, (place, graph) in enumerate(_graphs(module)):
        if type(graph._codegen) is not CodeGen:
            raise NotImportable(f"the graph {place or 'of a part'} cannot be written")
        code = graph.python_code("self")
        bindings |= code.globals
        packages |= {_package(node) for node in graph.nodes}
        texts.append(code.src.strip().replace("def forward(", f"def forward_{number}(", 1))
        names.append(f"    {place!r}: forward_{number},")
    imports = [f"import {package}" for package in sorted(packages) if _is_installed(package)]
    used = {n: value for n, value in bindings.items() if re.search(rf"\b{n}\b", "".join(texts))}
    head = _format_import_block(used, sys_importer)
    forwards = "\n".join(["FORWARDS = {", *names, "}"])
    return "\n\n".join(["\n".join([*imports, head]), *texts, forwards]) + "\n"


def _graphs(module: torch.fx.GraphModule) -> Iterator[tuple[str, torch.fx.Graph]]:
    for place, part in module.named_modules():
        if isinstance(part, torch.fx.GraphModule):
            yield place, part.graph


def _package(node: torch.fx.Node) -> str:
    """The package that defines an operator, such as torchvision; empty for those of torch."""
    space = getattr(node.target, "namespace", "aten")
    return "" if space in _BUILT_IN else str(space)


def _is_installed(package: str) -> bool:
    return bool(package) and importlib.util.find_spec(package) is not None


def _weights(module: torch.fx.GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights that the graphs read, each in memory of its own."""
    for place, graph in _graphs(module):
        for node in graph.nodes:
            if node.op == "get_attr":
                path = f"{place}.{node.target}" if place else str(node.target)
                value: Any = module
                for name in path.split("."):
                    value = getattr(value, name)
                if torch.is_tensor(value):
                    value = value.detach().clone(memory_format=torch.contiguous_format)
                    pairs = value.is_complex()
                    yield (
                        (_COMPLEX + path, torch.view_as_real(value).contiguous())
                        if pairs
                        else (path, value)
                    )
