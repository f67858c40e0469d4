"""Finds the matrix whose columns an attention operand reads.

Query, key and value are often parts of one product: thirds of its columns (GPT-2), one of three
blocks after a transpose (timm, `torch.nn.MultiheadAttention`), every third head (BLOOM). Attention
reads them where they are, so nobody copies them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst

from tlmd.alternatives.attention.attention_operand import Operand
from tlmd.lowering.passes.reshapes import order_of, static_shape
from tlmd.lowering.passes.rewrites import factor_of, op_name

Places = NDArray[np.int64]
"""For each element, its place in the flat matrix."""

_MOST_ELEMENTS = 1 << 24
_RESHAPES = ("relax.reshape", "relax.squeeze", "relax.expand_dims")


@dataclass(frozen=True)
class View:
    """A variable, seen as four dimensions in some order, of which an operand has some heads."""

    variable: Any
    operand: Operand
    """Its shape is that of the variable, or one that it is reshaped to."""

    factor: float = 1.0
    """The columns times this are the operand of the matmul."""


@dataclass(frozen=True)
class _Move:
    """An operator that moves elements or leaves some out, as numpy does it."""

    apply: Callable[..., Places]
    arguments: tuple[Any, ...]
    is_part: bool = False
    """Whether it leaves some out."""


def columns_of(expr: relax.Expr, order: str, value_of: Callable[[Any], Any]) -> View | None:
    """The view of the matrix that `expr` is some columns of; None if it is no part of any.

    `order` of `expr`: ``BHLD`` or ``BHDL``; it may have the first two dimensions as one. `value_of`
    says what a variable stands for.
    """
    variable, factor = expr, 1.0
    moves: list[_Move] = []
    while True:
        value = value_of(variable)
        if (times := factor_of(value)) is not None:
            variable, factor = value.args[0], factor * times
        elif (moved := _move(value, value_of)) is not None:
            variable, move = moved
            moves.insert(0, move)
        else:
            break
    shape = static_shape(variable)
    if not any(move.is_part for move in moves) or not shape or expr.ty.ndim < 2:
        return None
    if order == "BHDL":
        moves.append(_Move(np.swapaxes, (-1, -2)))
    operand = _operand(shape, tuple(moves))
    return None if operand is None else View(variable, operand, factor)


@functools.lru_cache(maxsize=256)
def _operand(shape: tuple[int, ...], moves: tuple[_Move, ...]) -> Operand | None:
    """How ``[..., L, D]``, which `moves` make of a matrix of this shape, is read from it."""
    elements = math.prod(shape)
    if not 0 < elements <= _MOST_ELEMENTS:
        return None
    places = np.arange(elements, dtype=np.int64).reshape(shape)
    for move in moves:
        places = move.apply(places, *move.arguments)
    columns, (rows, depth) = shape[-1], places.shape[-2:]
    groups = places.reshape(-1, rows, depth)
    of_row, of_column = np.divmod(groups[:, 0, 0], columns)
    heads = int((of_row == of_row[0]).sum())
    images = len(groups) // heads
    first, step = int(of_column[0]), depth if heads == 1 else int(of_column[1] - of_column[0])
    is_whole = images * heads == len(groups) and images * rows * columns == elements
    if not is_whole or step <= 0 or any(n % depth for n in (columns, first, step)):
        return None
    b, h, i, d = np.ogrid[:images, :heads, :rows, :depth]
    for outer, row in (("BL", b * rows + i), ("LB", i * images + b)):
        wanted = (row * columns + first + h * step + d).reshape(groups.shape)
        if np.array_equal(wanted, groups):
            sizes = {"B": images, "L": rows}
            whole = (*(sizes[letter] for letter in outer), columns // depth, depth)
            return Operand(f"{outer}HD", whole, first // depth, heads, step // depth)
    return None


def _move(value: relax.Expr, value_of: Callable[[Any], Any]) -> tuple[Any, _Move] | None:
    """The source of `value` and the move from it; None if no move made it."""
    name, shape = op_name(value), static_shape(value)
    if isinstance(value, relax.TupleGetItem):
        return _section(value_of(value.tuple_value), int(value.index))
    if not shape or not name:
        return None
    source = value.args[0]
    if name in _RESHAPES:
        return source, _Move(np.reshape, (shape,))
    if name == "relax.permute_dims":
        return source, _Move(np.transpose, (tuple(order_of(value, len(shape))),))
    if name == "relax.take":
        index, axis = value_of(value.args[1]), value.attrs.axis
        if not isinstance(index, GenericConst) or index.value.numpy().ndim or axis is None:
            return None
        return source, _Move(np.take, (int(index.value.numpy()), int(axis)), True)
    if name == "relax.strided_slice":
        return source, _Move(_sliced, _bounds(value), True)
    return None


def _section(split: relax.Call, index: int) -> tuple[Any, _Move] | None:
    """One result of a split."""
    if op_name(split) != "relax.split":
        return None
    axis, sections = int(split.attrs.axis), split.attrs.indices_or_sections
    at = int(sections) if hasattr(sections, "value") else tuple(int(one) for one in sections)
    return split.args[0], _Move(_split, (at, axis, index), True)


def _split(places: Places, at: Any, axis: int, index: int) -> Places:
    return np.split(places, at, axis)[index]


def _bounds(call: relax.Call) -> tuple[tuple[int, ...], ...]:
    """For each axis of a slice: the axis, the first element, the one after the last, the step."""
    listed = ([int(one) for one in argument.fields] for argument in call.args[1:])
    return tuple(zip(*listed, strict=True))


def _sliced(places: Places, *bounds: tuple[int, ...]) -> Places:
    slices = [slice(None)] * places.ndim
    for axis, *bound in bounds:
        slices[axis] = slice(*bound)
    return places[tuple(slices)]
