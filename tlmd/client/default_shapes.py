"""Shapes for a model whose file leaves dimensions open: proposed, and taken if the user agrees."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from tlmd.data.job_request import JobRequest


def with_shapes(request: JobRequest, agreed: bool) -> JobRequest:
    """The request with shapes of the inputs, where an ONNX file needs them and none were given.

    `agreed`: the proposed shapes are taken. Otherwise the user is asked, if there is a terminal.
    Without one the request stays as it is, and loading the model says what is missing.
    """
    path = Path(request.name).expanduser()
    wanted = path.suffix == ".onnx" and request.input_shapes is None and path.is_file()
    if not wanted or importlib.util.find_spec("onnx") is None:
        return request
    from tlmd.models.onnx.open_dimensions import proposed_shapes

    shapes = proposed_shapes(path)
    if shapes is None:
        return request
    text = " ".join(",".join(map(str, shape)) for shape in shapes)
    if not agreed:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return request
        print(
            f"tlmd: {path} has open dimensions. Take the shapes {text}? [Y/n] ",
            end="",
            file=sys.stderr,
        )
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("", "y", "yes"):
            return request
    print(
        f"tlmd: the inputs of {path} get the shapes {text}; --input-shape gives others",
        file=sys.stderr,
    )
    return request.model_copy(update={"input_shapes": shapes})
