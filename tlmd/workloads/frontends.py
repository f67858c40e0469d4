"""Load a user's model: an ONNX file, a .pt2 file, a Python factory or a zoo name.

If a model cannot be used, `BadInput` is raised with one line: the cause, then what to do.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from tlmd.errors import BadInput
from tlmd.types import ModelSpec, Shapes
from tlmd.workloads import onnx_frontend, torch_frontend
from tlmd.workloads.sources import InputInfo, SourceModel
from tlmd.workloads.zoo import zoo

__all__ = ["InputInfo", "SourceModel", "load", "load_model"]


def load_model(spec: str, input_shapes: Shapes | None = None) -> SourceModel:
    """Load `file.onnx`, `file.pt2`, `package.module:factory` or a zoo name.

    `input_shapes` has one shape per input. None: use the model's own shapes. Raises `BadInput`.
    """
    check(spec)
    if spec.endswith((".onnx", ".pt2")):
        path = Path(spec).expanduser()
        if path.suffix == ".onnx":
            return onnx_frontend.load_onnx(path, input_shapes)
        return torch_frontend.load_pt2(path, input_shapes)
    if ":" in spec:
        return torch_frontend.load_factory(spec, input_shapes)
    shape = _single(spec, input_shapes)
    module, example = zoo()[spec].make(shape)
    return torch_frontend.from_module(spec, module, example)


def load(spec: ModelSpec) -> SourceModel:
    """Load a model with everything that its spec says. Raises `BadInput`."""
    return load_model(spec.name, spec.input_shapes)


def check(spec: str) -> None:
    """Check quickly that a model exists. Raises `BadInput` for a missing file or unknown name."""
    if spec.endswith((".onnx", ".pt2")):
        if not Path(spec).expanduser().is_file():
            raise BadInput(f"no such file: {spec}; give the path of an existing model")
    elif ":" not in spec and spec not in zoo():
        raise BadInput(_unknown(spec))


def _unknown(spec: str) -> str:
    near = difflib.get_close_matches(spec.lower().replace("_", "-"), zoo(), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "`tlmd zoo` lists the names"
    if os.sep in spec or Path(spec).exists():
        hint = "files must end in .onnx or .pt2"
    return f"unknown model {spec!r}; {hint}"


def _single(name: str, shapes: Shapes | None) -> tuple[int, ...] | None:
    if shapes is None:
        return None
    if len(shapes) != 1:
        raise BadInput(f"{name} has 1 input but {len(shapes)} shapes were given; give 1")
    return shapes[0]
