"""Numbers for the open dimensions of an ONNX file, such as a batch of 1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tlmd.data.model_spec import Shapes

_BATCH, _SEQUENCE, _IMAGE, _CHANNELS = 1, 128, 224, 3
_BY_NAME = (  # the first that is found in the name of the dimension
    (r"batch|^n$|^b$|^bs$", _BATCH),
    (r"seq|len|time|token|^t$|^s$", _SEQUENCE),
    (r"height|width|^h$|^w$|size", _IMAGE),
    (r"chan|^c$", _CHANNELS),
)


def dimensions(value: Any) -> list[int | str]:
    """The dimensions of an input: numbers, and names of those that are open."""
    return [
        # Some exporters write -1 for an open dimension.
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or "?"
        for dim in value.type.tensor_type.shape.dim
    ]


def proposed(dims: Sequence[int | str]) -> tuple[int, ...]:
    """Numbers for the open ones among `dims`: by their names, else by their places.

    Images have four dimensions, and 3 x 224 x 224; texts have two, and 128 tokens.
    """
    return tuple(
        dim if isinstance(dim, int) else _number(dim, place, len(dims))
        for place, dim in enumerate(dims)
    )


def _number(name: str, place: int, rank: int) -> int:
    for pattern, number in _BY_NAME:
        if re.search(pattern, name.lower()):
            return number
    if place == 0:
        return _BATCH
    if rank == 4:
        return _CHANNELS if place == 1 else _IMAGE
    return _SEQUENCE


def proposed_shapes(path: Path) -> Shapes | None:
    """A shape for each input of a file that has an open dimension; None for other files."""
    import onnx

    try:
        graph = onnx.load(str(path), load_external_data=False).graph
    except Exception:  # what is wrong with it is said where it is loaded
        return None
    weights = {tensor.name for tensor in graph.initializer}
    shapes = [dimensions(value) for value in graph.input if value.name not in weights]
    if all(isinstance(dim, int) for dims in shapes for dim in dims):
        return None
    return tuple(map(proposed, shapes))
