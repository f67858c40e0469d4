"""GEMMs and convolutions as one GEMM for the CPU's matrix unit (`amx`), of bfloat16 or bytes.

The data are made a matrix first: what a row of a convolution's result needs is one row of it. For
bfloat16 it is rounded to pairs, of the halves of the channels, as in `packed`; a float32 program
has pairs of two parts of each number. All outer dimensions of the output are one dimension of rows,
rounded up to whole tiles; the rows too many repeat the last one.

Where the channels of a tap do not fill whole rows of tiles, the last row overlaps the one before
it, and the weights of what it has twice are zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from tvm import te, tirx

from tlmd.alternatives import amx, bfloat16, contraction, int8
from tlmd.alternatives.amx_code import BF16, EDGE, INT8, PRODUCTS
from tlmd.alternatives.contraction import (
    Contraction,
    axis,
    flattened,
    long,
    shape_of,
    substituted,
    unflattened,
)
from tlmd.alternatives.implementation import Implementation
from tlmd.alternatives.kernel import multiple
from tlmd.alternatives.packed import PLACED, clamped
from tlmd.alternatives.transforms import (
    AMX_BF16,
    AMX_INT8,
    AMX_PARTS,
    BYTES_OF_A_ROW,
    PAIRS_OF_A_ROW,
)
from tlmd.alternatives.words import WORD

ROUNDED, MATRIX, PRODUCED = "amx_rounded", "amx_matrix", "amx_products"
_MOST_FILLED = 1.5  # numbers in rows of tiles over numbers that are needed


@dataclass(frozen=True)
class _Numbers:
    """What the unit multiplies."""

    numbers: str
    parts: int

    work: float
    """Over that of the direct program; it is tried first."""

    @property
    def given(self) -> str:
        """The dtype of the data."""
        return "float32" if self.numbers == BF16 else "uint8"

    @property
    def of_a_row(self) -> int:
        """Elements of the matrix in a row of a tile."""
        return PAIRS_OF_A_ROW if self.numbers == BF16 else BYTES_OF_A_ROW

    def elements(self, channels: int) -> int:
        """Elements of the matrix that channels need."""
        return channels // 2 if self.numbers == BF16 else channels

    def element(self, number: Callable[[Any], Any], count: int, part: Any, place: Any) -> Any:
        """An element of the matrix, of a tap with `count` of them, from the numbers of channels."""
        first = _overlapping(place, count, self.of_a_row)
        if self.numbers == INT8:
            return number(first)
        # Bound, because a number may be a choice between an element and the padding.
        names = [tirx.Var(name, self.given) for name in ("lower", "upper")]
        pair = bfloat16.pair(*names)
        if self.parts > 1:
            pair = tirx.Select(part == 0, pair, bfloat16.pair(*map(bfloat16.rest, names)))
        for name, channel in zip(names, (first, first + count), strict=True):
            pair = tirx.Let(name, number(channel), pair)
        return pair

    def product(self, matrix: Any, row: Any, part: int, word: Any, weights: Any) -> Any:
        """The products of a word of the matrix and one of the weights, added."""
        if self.numbers == BF16:
            return bfloat16.product(matrix[row, part, word], weights)
        return int8.product(
            [matrix[row, part, word * int8.QUAD + i] for i in range(int8.QUAD)], weights
        )


_KINDS = {
    AMX_BF16: _Numbers(BF16, 1, 0.35),
    AMX_PARTS: _Numbers(BF16, 2, 0.65),
    AMX_INT8: _Numbers(INT8, 1, 0.2),
}


def packed(direct: Implementation, constants: Sequence[int], name: str) -> Implementation | None:
    """The program for the matrix unit; None where the weights cannot be packed for it.

    The weights ``[..., N]`` become ``[panels, K, parts, columns]`` words, `columns` those of a
    kernel. `constants`: positions of the parameters that are weights. `name`: with `AMX_BF16` data
    and weights are rounded to bfloat16, with `AMX_PARTS` to two parts. `AMX_INT8` is for products
    of integers.
    """
    kind = _KINDS[name]
    found = contraction.with_constants(direct.module["main"], constants, kind.given)
    if found is None or not _fits(found, kind):
        return None
    made = contraction.replaced(direct.module, found, _stages(found, kind))
    return Implementation(name, made, direct.flops, direct.work * kind.work)


def _fits(found: Contraction, kind: _Numbers) -> bool:
    """Whether all columns need the same data, whose innermost dimension fills rows of tiles."""
    channels, indices = shape_of(found.weights.source)[-2], found.data.indices
    if any(contraction.uses(index, found.spatial[-1]) for index in indices):
        return False
    is_along, count = indices[-1].same_as(found.reduction[-1]), kind.elements(channels)
    is_whole = channels % 2 == 0 and count >= kind.of_a_row
    return is_along and is_whole and multiple(count, kind.of_a_row) <= _MOST_FILLED * count


def rows_of_tiles(rows: int, columns: int) -> int:
    """Tiles of rows of a kernel with so many tiles of columns; `rows`: numbers in all."""
    tiles = -(-rows // EDGE)
    return next(height for height in (4, 2, 1) if height * columns <= 4 and tiles % height == 0)


def _columns_of_tiles(rows: int, columns: int) -> int:
    """Tiles of columns of a kernel, which are a panel, for so many rows and columns of numbers."""
    tiles = -(-columns // EDGE)
    return min(tiles, 2 if -(-rows // EDGE) % 2 == 0 else 4)


def _stages(found: Contraction, kind: _Numbers) -> Any:
    """The function ``(data, weights, output)`` of the GEMM, and of writing its result."""
    *outer, columns = shape_of(found.output)
    panel = EDGE * _columns_of_tiles(math.prod(outer), columns)
    panels = -(-columns // panel)
    data = te.placeholder(long(shape_of(found.data.source)), kind.given, name="data")
    matrix = _matrix(found, kind, data)
    rows, parts, elements = (int(extent) for extent in matrix.shape)
    depth = elements // amx.BYTES[kind.numbers]
    weights = te.placeholder(long((panels, depth, parts, panel)), WORD, name="weights")
    k = axis(depth, "k")

    def value(row: Any, column: Any) -> Any:
        chosen, place = column // panel, column % panel
        terms = (
            kind.product(matrix, row, a, k.var, weights[chosen, k.var, b, place])
            for a, b in PRODUCTS[parts]
        )
        return te.sum(reduce(add, terms), axis=[k])

    products = te.compute(long((rows, panels * panel)), value, name=PRODUCED)
    placed = te.compute(
        long((*outer, columns)),
        lambda *at: products[flattened(at[:-1], outer), at[-1]],
        name=PLACED,
    )
    return te.create_prim_func([data, weights, placed])


def _matrix(found: Contraction, kind: _Numbers, data: Any) -> Any:
    """The data as ``[rows, parts, elements]``; what several taps read is rounded only once."""
    outer = shape_of(found.output)[:-1]
    *taps, channels = shape_of(found.weights.source)[:-1]
    count = kind.elements(channels)
    width = multiple(count, kind.of_a_row)
    rows, padded = math.prod(outer), multiple(math.prod(outer), EDGE)

    def made(before: Sequence[Any], part: Any, place: Any) -> Any:
        return kind.element(lambda channel: data[(*before, channel)], count, part, place)

    is_rounded = kind.numbers == BF16 and math.prod(taps) > 1
    rounded = te.compute(
        long((*shape_of(found.data.source)[:-1], kind.parts, width)),
        lambda *at: made(at[:-2], *at[-2:]),
        name=ROUNDED,
    )

    def element(row: Any, part: Any, index: Any) -> Any:
        at = unflattened(clamped(row, rows, padded), outer)
        *tap, place = unflattened(index, [*taps, width])
        values = list(zip([*found.spatial[:-1], *found.reduction[:-1]], [*at, *tap], strict=True))
        before = [substituted(one, values) for one in found.data.indices[:-1]]
        return rounded[(*before, part, place)] if is_rounded else made(before, part, place)

    shape = padded, kind.parts, math.prod(taps) * width
    return te.compute(long(shape), element, name=MATRIX)


def _overlapping(place: Any, count: int, of_a_row: int) -> Any:
    """The channel at a place in the rows of tiles, of `count` channels."""
    if count % of_a_row == 0:
        return place
    return tirx.min(place // of_a_row * of_a_row, count - of_a_row) + place % of_a_row
