"""Loading of PyTorch models: factories, zoo networks and exported programs (.pt2)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tlmd.errors import BadInput
from tlmd.types import Shapes
from tlmd.workloads.archives import load_exported_program
from tlmd.workloads.sources import (
    ReferenceFunction,
    SourceModel,
    first_line,
    input_infos,
    numpy_dtype,
)


def load_factory(spec: str, shapes: Shapes | None) -> SourceModel:
    """Load the model of a factory ``package.module:function``. Raises `BadInput`.

    The factory returns ``(module, example_inputs)``.
    """
    module_name, _, attribute = spec.partition(":")
    advice = "it must return (module, example_inputs)"
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
        example = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise BadInput(f"factory {spec} failed ({reason}); {advice}") from error
    if not callable(getattr(module, "eval", None)):
        raise BadInput(f"factory {spec} returned a {type(module).__name__}; {advice}")
    return from_module(spec, module.eval(), _reshaped(spec, example, shapes))


def _reshaped(name: str, example: tuple[Any, ...], shapes: Shapes | None) -> tuple[Any, ...]:
    """The example inputs in the shapes `shapes`."""
    if shapes is None:
        return example
    if len(shapes) != len(example):
        raise BadInput(
            f"{name} has {len(example)} inputs but {len(shapes)} shapes were given; "
            "give --input-shape once per input"
        )
    return tuple(
        value if tuple(value.shape) == tuple(shape) else _filled(value, shape)
        for value, shape in zip(example, shapes, strict=True)
    )


def _filled(value: Any, shape: tuple[int, ...]) -> Any:
    import torch

    # Repeat valid values, so that integers stay in the range that the model accepts.
    flat = value.reshape(-1) if value.numel() else torch.zeros(1, dtype=value.dtype)
    count = int(np.prod(shape))
    return flat.repeat(-(-count // flat.numel()))[:count].reshape(shape)


def from_module(name: str, module: Any, example: tuple[Any, ...]) -> SourceModel:
    """Export a torch module with its example inputs and import it into TVM. Raises `BadInput`."""
    import torch

    try:
        with torch.no_grad():
            module(*example)
    except Exception as error:
        shapes = " ".join(",".join(map(str, value.shape)) for value in example)
        reason = first_line(error)
        raise BadInput(f"{name} cannot run on inputs {shapes} ({reason}); change them") from error
    try:
        with torch.no_grad():
            program = torch.export.export(module, example, strict=False)
    except Exception as error:
        reason = first_line(error)
        raise BadInput(f"torch.export cannot export {name} ({reason}); change the model") from error
    return _from_program(name, program, example, module)


def load_pt2(path: Path, shapes: Shapes | None) -> SourceModel:
    """Load an exported program. Raises `BadInput`."""
    program = load_exported_program(path)
    example = program.example_inputs[0] if program.example_inputs else ()
    module = program.module()
    if shapes is None or all(
        tuple(value.shape) == tuple(shape) for value, shape in zip(example, shapes, strict=False)
    ):
        example = _reshaped(str(path), example, shapes)
        return _from_program(path.stem, program, example, module)
    # Export again with other inputs; this works if the program was exported with dynamic shapes.
    return from_module(str(path), module, _reshaped(str(path), example, shapes))


def _from_program(name: str, program: Any, example: tuple[Any, ...], module: Any) -> SourceModel:
    from tlmd.workloads.torch_import import import_program

    relax = import_program(name, program)
    return SourceModel(name, relax, input_infos(name, relax, example), _torch_reference(module))


def _torch_reference(module: Any) -> ReferenceFunction:
    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        import torch

        with torch.no_grad():
            outputs = module(*(_to_torch(value) for value in inputs))
        if not isinstance(outputs, (tuple, list)):
            outputs = (outputs,)
        return [_to_numpy(output) for output in outputs]

    return run


def _to_torch(value: np.ndarray) -> Any:
    import torch

    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(value.copy())


def _to_numpy(value: Any) -> np.ndarray:
    import torch

    if value.dtype == torch.bfloat16:
        bits: np.ndarray = value.contiguous().view(torch.int16).numpy()
        return bits.view(numpy_dtype("bfloat16"))
    array: np.ndarray = value.detach().cpu().numpy()
    return array
