"""Indices and shapes in the programs of alternatives, as expressions of TVM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import te, tirx

SPATIAL, REDUCTION = 0, 2  # kinds of iterators: IterVar.DataPar, IterVar.CommReduce


def same(indices: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether the indices of a load are these expressions."""
    return len(indices) == len(expected) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(indices, expected, strict=True)
    )


def uses(expression: Any, variable: Any) -> bool:
    """Whether the variable is in the expression."""
    used: list[Any] = []
    tvm_ffi.structural_walk(expression, (tirx.Var, used.append))
    return any(variable.same_as(one) for one in used)


def substituted(expression: Any, values: Sequence[tuple[Any, Any]]) -> Any:
    """The expression with other values for these variables."""

    def value(variable: Any) -> Any:
        return next((new for old, new in values if old.same_as(variable)), variable)

    return tvm_ffi.structural_map(expression, (tirx.Var, value))


def flattened(indices: Sequence[Any], shape: Sequence[int]) -> Any:
    """The index in row-major order of an element of an array of this shape."""
    flat = indices[0]
    for index, extent in zip(indices[1:], shape[1:], strict=True):
        flat = flat * extent + index
    return flat


def unflattened(index: Any, shape: Sequence[int]) -> list[Any]:
    """The indices of dimensions whose flattened index is `index`."""
    indices = []
    for place, extent in enumerate(shape):
        inner = math.prod(shape[place + 1 :])
        outer = index if inner == 1 else tirx.floordiv(index, inner)
        indices.append(outer if place == 0 else tirx.floormod(outer, extent))
    return indices


def clamped(index: Any, extent: int, padded: int) -> Any:
    """An index below `padded`, of which those too many are the last one of `extent`."""
    return tirx.min(index, extent - 1) if padded > extent else index


def axis(extent: int, name: str) -> Any:
    """A reduction axis."""
    return te.reduce_axis((tirx.const(0, "int64"), tirx.const(int(extent), "int64")), name=name)


def long(shape: Sequence[int]) -> list[Any]:
    """Extents as the programs of models have them, int64."""
    return [tirx.const(int(extent), "int64") for extent in shape]
