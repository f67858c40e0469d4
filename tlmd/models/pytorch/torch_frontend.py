"""From a PyTorch module with example inputs, or an exported program (.pt2), to a Relax module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmd.data.errors import BadInput, NotImportable
from tlmd.data.model_spec import Shapes
from tlmd.models import call_structure, structure
from tlmd.models.call_structure import CallStructure
from tlmd.models.pytorch.archives import load_exported_program
from tlmd.models.pytorch.state import kept_state, seeded
from tlmd.models.pytorch.tensors import to_numpy, to_torch
from tlmd.models.sources import (
    InputInfo,
    ReferenceFunction,
    SourceModel,
    WrongNumberOfShapes,
    first_line,
    input_infos,
    tensor_info,
)
from tlmd.models.structure import Node

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FlatModel:
    """A torch module with flat inputs and outputs; it was not run yet."""

    name: str
    module: Any
    """See `flat_module`."""
    call: CallStructure
    tensors: Sequence[Any]
    """The example inputs."""
    notes: tuple[str, ...] = ()
    """What the user should know of how it was loaded, one line each."""

    def outputs(self) -> tuple[Node, list[str]]:
        """Structure and dtypes of the outputs, from one run on its example. Raises `BadInput`."""
        import torch

        args, kwargs = self.call.arguments_of(self.tensors)
        try:
            with torch.no_grad(), self.module.context(), kept_state(self.module):
                outputs = self.module.model(*args, **kwargs)
        except Exception as error:
            sizes = " ".join(",".join(map(str, value.shape)) for value in self.tensors)
            reason = f"cannot run on inputs {sizes} ({first_line(error)}); change them"
            raise BadInput(f"{self.name} {reason}") from error
        tensors: list[torch.Tensor] = []
        node = structure.describe(outputs, torch.is_tensor, tensors)
        if not any(node.tensors()):
            raise BadInput(f"{self.name} returns no tensor; return what is to be computed")
        return node, [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]

    def reference(self) -> ReferenceFunction:
        """A function that runs it in eager mode on numpy arrays, and leaves its state as it was."""

        def run(*inputs: np.ndarray) -> list[np.ndarray]:
            import torch

            with torch.no_grad(), kept_state(self.module), seeded():
                return [to_numpy(output) for output in self.module(*map(to_torch, inputs))]

        return run

    def imported(self) -> SourceModel:
        """Export it and import it into TVM. Raises `BadInput`."""
        from tlmd.models.output_dtypes import with_output_dtypes
        from tlmd.models.pytorch.importer import import_program

        outputs, dtypes = self.outputs()
        relax = import_program(self.name, exported(self.name, self.module, self.tensors))
        relax = with_output_dtypes(relax, dtypes)  # some differ inside of autocast
        infos = input_infos(self.name, relax, self.tensors, self.call.input_names())
        return self._source(relax, infos, outputs)

    def unimported(self) -> SourceModel:
        """It without a Relax module. Raises `BadInput` if it cannot run on its example."""
        infos = tuple(
            tensor_info(name, str(tensor.dtype).removeprefix("torch."), tensor.shape, tensor)
            for name, tensor in zip(self.call.input_names(), self.tensors, strict=True)
        )
        return self._source(None, infos, self.outputs()[0])

    def _source(self, relax: Any, infos: tuple[InputInfo, ...], outputs: Node) -> SourceModel:
        example = tuple(to_numpy(tensor) for tensor in self.tensors)
        reference = self.reference()
        return SourceModel(
            self.name, relax, infos, reference, self.call, outputs, example, self.module, self.notes
        )


def flattened(
    name: str, module: Any, example: Any, shapes: Shapes | None = None, caches: bool = False
) -> FlatModel:
    """Describe how a torch module is called. Raises `BadInput`.

    `example` is a tuple of positional inputs, a dict of keyword inputs, or one tensor. `shapes` has
    one shape per tensor of the inputs and replaces the shapes of the example. `caches`: whether
    key-value caches of transformers are among the outputs.
    """
    import torch

    args, kwargs = arguments(example)
    function = getattr(module, "forward", module)
    call, tensors = call_structure.describe_call(function, args, kwargs, torch.is_tensor)
    if not tensors:
        raise BadInput(f"{name} has no tensor among its inputs; give example inputs with tensors")
    tensors = _reshaped(name, tensors, shapes)
    return FlatModel(name, flat_module(module, call, caches), call, tensors)


def from_module(
    name: str, module: Any, example: Any, shapes: Shapes | None = None, caches: bool = False
) -> SourceModel:
    """Export a torch module with its example inputs and import it into TVM. Raises `BadInput`.

    `example`, `shapes` and `caches`: as in `flattened`.
    """
    return flattened(name, module, example, shapes, caches).imported()


def flattened_pt2(path: Path, shapes: Shapes | None) -> FlatModel:
    """An exported program as a module. Raises `BadInput`.

    Other shapes than those of its example work if it was exported with dynamic shapes.
    """
    program = load_exported_program(path)
    args, kwargs = program.example_inputs or ((), {})
    return flattened(path.stem, program.module(), (args, kwargs), shapes)


def arguments(example: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Positional and keyword arguments of an example."""
    if isinstance(example, Mapping):
        return (), example
    if isinstance(example, tuple | list):
        pair = len(example) == 2 and isinstance(example[0], tuple | list)
        if pair and isinstance(example[1], dict):
            return example[0], example[1]
        return tuple(example), {}
    return (example,), {}


@contextmanager
def _without_cache(module: Any) -> Iterator[None]:
    """In this context, models of transformers return no key-value cache.

    No program of fixed shapes can grow one.
    """
    parts = module.modules() if hasattr(module, "modules") else ()
    configs: dict[int, Any] = {id(c): c for c in (getattr(part, "config", None) for part in parts)}
    caching = [c for c in configs.values() if getattr(c, "use_cache", False) is True]
    try:
        for config in caching:
            config.use_cache = False
        yield
    finally:
        for config in caching:
            config.use_cache = True


def _reshaped(name: str, example: list[torch.Tensor], shapes: Shapes | None) -> list[torch.Tensor]:
    """The example inputs in the shapes `shapes`."""
    if shapes is None:
        return example
    if len(shapes) != len(example):
        raise WrongNumberOfShapes(name, len(example), len(shapes))
    return [
        value if tuple(value.shape) == tuple(shape) else _filled(value, shape)
        for value, shape in zip(example, shapes, strict=True)
    ]


def _filled(value: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    # Repeat valid values, so that integers stay in the range that the model accepts.
    flat = value.reshape(-1) if value.numel() else torch.zeros(1, dtype=value.dtype)
    count = int(np.prod(shape))
    return flat.repeat(-(-count // flat.numel()))[:count].reshape(shape)


def flat_module(module: Any, call: CallStructure, caches: bool = False) -> Any:
    """`module` with a flat tuple of tensors as inputs and outputs, which every exporter accepts.

    `caches`: whether key-value caches are among the outputs.
    """
    import torch

    class FlatModule(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module
            self.as_run = False

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            args, kwargs = call.arguments_of(tensors)
            results: list[Any] = []
            with _as_run(self.as_run), self.context():
                outputs = self.model(*args, **kwargs)
            describe_outputs(outputs, results)
            return tuple(results)

        def context(self) -> AbstractContextManager[None]:
            return nullcontext() if caches else _without_cache(self.model)

    flat = FlatModule()
    flat.training = False  # not `eval`, which an exported module does not allow
    return flat


def describe_outputs(outputs: Any, tensors: list[torch.Tensor]) -> Node:
    """The structure of what a module returns; its tensors are appended to `tensors`.

    Objects of any class are taken apart, such as a key-value cache of transformers. Raises
    `BadInput` for what is no container of tensors.
    """
    import torch

    constants = (torch.dtype, torch.device)
    return structure.describe(outputs, torch.is_tensor, tensors, constants=constants)


def exported(name: str, module: Any, example: Sequence[torch.Tensor]) -> Any:
    """The exported program of a module with flat inputs and outputs. Raises `BadInput`."""
    import torch

    def export() -> Any:
        with torch.no_grad():
            return torch.export.export(module, tuple(example), strict=False)

    try:
        return export()
    except Exception as error:
        if hasattr(module, "as_run"):
            module.as_run = True
            try:
                with suppress(Exception):  # the first error says more
                    return export()
            finally:
                module.as_run = False
        reason = first_line(error)
        raise NotImportable(
            f"torch.export cannot export {name} ({reason}); change the model"
        ) from error


@contextmanager
def _as_run(wanted: bool) -> Iterator[None]:
    """In this context, torch.compiler says that no export is going on, if that is `wanted`.

    Some models of transformers run other code during an export, and that code fails.
    """
    import torch

    flags = ("_is_compiling_flag", "_is_exporting_flag") if wanted else ()
    before = {flag: getattr(torch.compiler, flag) for flag in flags}
    try:
        for flag in flags:
            setattr(torch.compiler, flag, False)
        yield
    finally:
        for flag, value in before.items():
            setattr(torch.compiler, flag, value)
