"""Load a user's model: a file, a directory of transformers, a Python factory, or a known name.

If a model cannot be used, `BadInput` is raised with one line: the cause, then what to do.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec, Shapes
from tlmd.models import huggingface
from tlmd.models.huggingface import weights_note
from tlmd.models.sources import (
    InputInfo,
    Original,
    ReferenceFunction,
    SourceModel,
    WrongNumberOfShapes,
)
from tlmd.models.zoo.catalogue import zoo

if TYPE_CHECKING:
    from tlmd.models.pytorch.torch_frontend import FlatModel

__all__ = ["InputInfo", "SourceModel", "load", "load_model", "original", "weights_note"]
_FILES = (".onnx", ".pt2")


def load_model(name: str, input_shapes: Shapes | None = None) -> SourceModel:
    """Load the model `name` (see `ModelSpec`). `input_shapes` has one shape per input.

    Raises `BadInput`.
    """
    return load(ModelSpec(name, input_shapes))


def load(spec: ModelSpec) -> SourceModel:
    """Load a model with everything that its spec says, for TVM. Raises `BadInput`."""
    return _original(spec).imported()


def _original(spec: ModelSpec) -> Original:
    if _is_onnx(spec):
        from tlmd.models.onnx import onnx_frontend

        return onnx_frontend.read(_file(spec), spec.input_shapes)
    return _flattened(spec)


def original(spec: ModelSpec) -> tuple[ReferenceFunction | None, Any]:
    """`reference` and `torch_module` of the model's `SourceModel`. It is not imported into TVM.

    Raises `BadInput`.
    """
    if _is_onnx(spec):
        from tlmd.models.onnx import onnx_frontend

        return onnx_frontend.load_reference(_file(spec)), None
    flat = _flattened(spec)
    return flat.reference(), flat.module


def originals(spec: ModelSpec) -> list[tuple[ModelSpec, Original]]:
    """A model for each set of input shapes, not imported into TVM yet. Raises `BadInput`."""
    try:
        return [(spec, _original(spec))]
    except WrongNumberOfShapes as error:
        shapes, inputs = spec.input_shapes or (), error.inputs
        if not inputs or len(shapes) % inputs:
            raise
        chunks = (shapes[i : i + inputs] for i in range(0, len(shapes), inputs))
        sets = [spec.model_copy(update={"input_shapes": chunk}) for chunk in dict.fromkeys(chunks)]
        return [(one, _original(one)) for one in sets]


def load_sets(spec: ModelSpec) -> list[tuple[ModelSpec, SourceModel]]:
    """Load a model for TVM once for each set of input shapes. Raises `BadInput`."""
    return [(one, original.imported()) for one, original in originals(spec)]


def _is_onnx(spec: ModelSpec) -> bool:
    """Whether it is an ONNX file. Raises `BadInput` if there is no such model."""
    check(spec.name)
    if spec.name.endswith(_FILES) and (spec.weights or spec.random_weights):
        option = "--weights" if spec.weights else "--random-weights"
        raise BadInput(f"{_file(spec)} has its own weights; leave {option} out")
    return spec.name.endswith(".onnx")


def _file(spec: ModelSpec) -> Path:
    return Path(spec.name).expanduser()


def _flattened(spec: ModelSpec) -> FlatModel:
    from tlmd.models import factories
    from tlmd.models.pytorch import torch_frontend

    if spec.name.endswith(".pt2"):
        return torch_frontend.flattened_pt2(_file(spec), spec.input_shapes)
    notes: list[str] = []
    module, example = factories.make(spec, notes.append)
    in_zoo = spec.name in zoo() and not huggingface.is_directory(spec.name)
    # A factory of the zoo has made its inputs in the given shape.
    flat = torch_frontend.flattened(
        spec.name, module, example, None if in_zoo else spec.input_shapes
    )
    return replace(flat, notes=tuple(notes))


def check(name: str) -> None:
    """Check quickly that a model exists. Raises `BadInput` for a missing file or unknown name."""
    if name.endswith(_FILES):
        if not Path(name).expanduser().is_file():
            raise BadInput(f"no such file: {name}; give the path of an existing model")
    elif ":" not in name and not huggingface.is_directory(name) and name not in zoo():
        raise BadInput(_unknown(name))


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower().replace("_", "-"), zoo(), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "`tlmd zoo` lists the names"
    if Path(name).is_dir():
        hint = "the directory has no config.json of transformers"
    elif os.sep in name or Path(name).exists():
        hint = "files must end in .onnx or .pt2"
    return f"unknown model {name!r}; {hint}"
