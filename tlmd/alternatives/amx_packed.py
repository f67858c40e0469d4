"""GEMMs and convolutions as one GEMM of pairs of bfloat16, for the CPU's matrix unit (`amx`).

The data are rounded to pairs first, as a matrix of rows: what a row of a convolution's result needs
is one row. A float32 program has pairs of two parts of each number. All outer dimensions of the
output are one dimension of rows, rounded up to whole tiles; the rows too many repeat the last one.

The halves of the channels are pairs, as in `packed`. Where a half is no multiple of a tile's words,
its last words overlap the ones before them, and the weights of those that overlap are zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

from tvm import te, tirx

from tlmd.alternatives import bfloat16, contraction
from tlmd.alternatives.amx_code import EDGE, PRODUCTS
from tlmd.alternatives.contraction import (
    DTYPE,
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
from tlmd.alternatives.transforms import AMX_BF16, AMX_PARTS, half_words
from tlmd.alternatives.words import WORD

PAIRS, PRODUCED = "amx_pairs", "amx_products"
_PARTS = {AMX_BF16: 1, AMX_PARTS: 2}
_WORK = {AMX_BF16: 0.35, AMX_PARTS: 0.65}
"""Over that of the direct program; they are tried first."""
_MOST_FILLED = 1.5  # words over words that are needed


def packed(direct: Implementation, constants: Sequence[int], name: str) -> Implementation | None:
    """The program for the matrix unit; None where the weights cannot be packed for it.

    The weights ``[..., N]`` become ``[panels, K, parts, columns]`` pairs, `columns` those of a
    kernel. `constants`: positions of the parameters that are weights. `name`: with `AMX_BF16` data
    and weights are rounded to bfloat16, with `AMX_PARTS` to two parts.
    """
    found = contraction.with_constants(direct.module["main"], constants)
    if found is None or not _has_pairs(found):
        return None
    made = contraction.replaced(direct.module, found, _stages(found, _PARTS[name]))
    return Implementation(name, made, direct.flops, direct.work * _WORK[name])


def _has_pairs(found: Contraction) -> bool:
    """Whether all columns need the same data, along whose innermost dimension a sum goes."""
    channels = shape_of(found.weights.source)[-2]
    if any(contraction.uses(index, found.spatial[-1]) for index in found.data.indices):
        return False
    if (
        channels % 2
        or channels // 2 < EDGE
        or not found.data.indices[-1].same_as(found.reduction[-1])
    ):
        return False
    return half_words(channels) <= _MOST_FILLED * (channels // 2)


def rows_of_tiles(rows: int, columns: int) -> int:
    """Tiles of rows of a kernel with so many tiles of columns; `rows`: numbers in all."""
    tiles = -(-rows // EDGE)
    return next(height for height in (4, 2, 1) if height * columns <= 4 and tiles % height == 0)


def _columns_of_tiles(rows: int, columns: int) -> int:
    """Tiles of columns of a kernel, which are a panel, for so many rows and columns of numbers."""
    tiles = -(-columns // EDGE)
    return min(tiles, 2 if -(-rows // EDGE) % 2 == 0 else 4)


def _stages(found: Contraction, parts: int) -> Any:
    """The function ``(data, weights, output)`` of the GEMM, and of writing its result."""
    *outer, columns = shape_of(found.output)
    rows = math.prod(outer)
    padded, panel = multiple(rows, EDGE), EDGE * _columns_of_tiles(rows, columns)
    *taps, channels = shape_of(found.weights.source)[:-1]
    half = half_words(channels)
    depth = math.prod(taps) * half
    data = te.placeholder(long(shape_of(found.data.source)), DTYPE, name="data")
    panels = -(-columns // panel)
    weights = te.placeholder(long((panels, depth, parts, panel)), WORD, name="weights")

    def pair(row: Any, part: Any, word: Any) -> Any:
        at = unflattened(clamped(row, rows, padded), outer)
        *tap, word = unflattened(word, [*taps, half])
        first = _channel(word, channels // 2)
        numbers = []
        for channel in (first, first + channels // 2):
            values = zip([*found.spatial[:-1], *found.reduction], [*at, *tap, channel], strict=True)
            pairs = list(values)
            numbers.append(data[tuple(substituted(i, pairs) for i in found.data.indices)])
        if parts == 1:
            return bfloat16.pair(*numbers)
        rest = bfloat16.pair(*map(bfloat16.rest, numbers))
        return tirx.Select(part == 0, bfloat16.pair(*numbers), rest)

    pairs = te.compute(long((padded, parts, depth)), pair, name=PAIRS)
    k = axis(depth, "k")

    def value(row: Any, column: Any) -> Any:
        terms = (
            bfloat16.product(
                pairs[row, a, k.var], weights[column // panel, k.var, b, column % panel]
            )
            for a, b in PRODUCTS[parts]
        )
        return te.sum(reduce(add, terms), axis=[k])

    products = te.compute(long((padded, panels * panel)), value, name=PRODUCED)
    placed = te.compute(
        long((*outer, columns)),
        lambda *at: products[flattened(at[:-1], outer), at[-1]],
        name=PLACED,
    )
    return te.create_prim_func([data, weights, placed])


def _channel(word: Any, half: int) -> Any:
    """The channel of the lower number of a pair, of `half` channels."""
    if half % EDGE == 0:
        return word
    return tirx.min(word // EDGE * EDGE, half - EDGE) + word % EDGE
