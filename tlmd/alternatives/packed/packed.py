"""Packed weights: GEMMs and convolutions as one GEMM whose weights lie as the kernel reads them.

A row of a large matrix of weights begins on a page of its own, so a tile of it touches many pages
and cache sets. As in GotoBLAS (Goto and van de Geijn, TOMS'08, section 4), panels of some columns
are stored one after the other. The weights are constants, so they are packed at compile time.
A grouped convolution is one GEMM for each block of its columns (`groups`).

All outer dimensions of the output are one dimension of rows. Their number is rounded up to one that
the rows of a kernel divide; the rows too many repeat the last one and are not written.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from tlmd.alternatives import groups
from tlmd.alternatives.alternative import DirectProgram, Implementation
from tlmd.alternatives.contraction import (
    DTYPE,
    Contraction,
    shape_of,
    with_constants,
    written_lanes,
)
from tlmd.alternatives.expressions import axis, clamped, flattened, long, unflattened, uses
from tlmd.alternatives.groups import Blocks
from tlmd.alternatives.kernel import VectorUnit, multiple
from tlmd.alternatives.words.words import WORD, Words

FILLED, PAIRS, PRODUCTS, PLACED = (
    f"packed_{stage}" for stage in ("filled", "pairs", "products", "placed")
)
GROUPED = "grouped_panels"
"""The products of a grouped convolution whose data are padded."""
_CHEAPER = 0.97  # the work of the packed program over that of the direct one; it is tried first
_MOST_FILLED = 1.5  # numbers in words over numbers that are needed
_NARROWEST = 4  # vectors of the output are at least a quarter as wide as those of the target


def packed(direct: DirectProgram, words: Words | None = None) -> Implementation | None:
    """The program with packed weights; None where they cannot be packed.

    The weights ``[..., N]`` become ``[panels, K, columns]`` with K the product of the other
    dimensions (and the groups of a block) and columns a multiple of a vector of the target.
    Columns too many are computed, but not written. With `words` some numbers in `K` are one word;
    for words of bfloat16 data and weights are rounded.
    """
    dtype = words.given if words else DTYPE
    contraction = with_constants(direct.module["main"], direct.constants, dtype)
    if contraction is None:
        return None
    unit = direct.unit
    columns, lanes = shape_of(contraction.output)[-1], unit.lanes
    blocks = _blocks(contraction, unit)
    if blocks is None or written_lanes(columns, lanes) * _NARROWEST < lanes:
        return None
    if words and not _has_words(contraction, blocks, words):
        return None
    made = contraction.replaced(direct.module, _stages(contraction, blocks, unit, words))
    work = _CHEAPER * direct.work * multiple(columns, lanes) / columns * blocks.zeros
    return Implementation(made, direct.flops, work / words.count if words else work)


def _blocks(contraction: Contraction, unit: VectorUnit) -> Blocks | None:
    """The blocks of columns; None where this is neither a GEMM nor a grouped convolution."""
    column = contraction.spatial[-1]
    *outer, innermost = [uses(index, column) for index in contraction.data.indices]
    if any(outer):
        return None
    if not innermost:  # each column needs all of the data
        return groups.whole(contraction)
    blocks = groups.find(contraction, column, contraction.reduction[-1], unit.lanes)
    return (
        blocks if blocks and blocks.columns % _padded(contraction, blocks, unit)[1] == 0 else None
    )


def _padded(contraction: Contraction, blocks: Blocks, unit: VectorUnit) -> tuple[int, int]:
    """Rows in all, and columns of a panel.

    No row is too many where the sketch of `GROUPED` can have blocks of whole rows of the image.
    """
    *outer, width = shape_of(contraction.output)[:-1]
    if _is_padded_and_grouped(contraction, blocks):
        _, panel = unit.kernels.pad_rows(width, blocks.columns)
        if unit.kernels.dividing_rows(width, panel // unit.lanes):
            return math.prod(outer) * width, panel
    return unit.kernels.pad_both(math.prod(outer) * width, blocks.columns)


def _is_padded_and_grouped(contraction: Contraction, blocks: Blocks) -> bool:
    return blocks.is_grouped and contraction.is_padded and len(shape_of(contraction.output)) > 2


def _has_words(contraction: Contraction, blocks: Blocks, words: Words) -> bool:
    """Whether the innermost sum goes along the innermost dimension of the data, in full words."""
    last = contraction.reduction[-1]
    padded = multiple(blocks.channels, words.count)
    if blocks.is_grouped:
        return padded == blocks.channels
    is_along: bool = contraction.data.indices[-1].same_as(last)
    return is_along and padded <= _MOST_FILLED * blocks.channels


def _stages(contraction: Contraction, blocks: Blocks, unit: VectorUnit, words: Words | None) -> Any:
    """The function ``(data, weights, output)`` of the GEMM, and of writing its result."""
    *outer, columns = shape_of(contraction.output)
    rows, depth = math.prod(outer), [*shape_of(contraction.weights.source)[:-2], blocks.channels]
    padded, panel = _padded(contraction, blocks, unit)
    given = contraction.placeholder()
    data, dtype, product = given, given.dtype, operator.mul
    if words:
        depth = [*depth[:-1], -(-depth[-1] // words.count)]
        data, dtype, product = _of_words(given, words, blocks), WORD, words.product
    weights = te.placeholder(
        long((multiple(columns, panel) // panel, math.prod(depth), panel)), dtype, name="weights"
    )
    axes = [axis(extent, "k") for extent in depth]

    def value(row: Any, column: Any) -> Any:
        at = unflattened(clamped(row, rows, padded), outer)
        indices = contraction.data_at(at, [one.var for one in axes])
        if blocks.is_grouped:
            indices[-1] = column // blocks.columns * depth[-1] + axes[-1].var
        k = flattened([a.var for a in axes], depth)
        weight = weights[column // panel, k, column % panel]
        return te.sum(product(_element(data, indices, words), weight), axis=axes)

    name = GROUPED if _is_padded_and_grouped(contraction, blocks) else PRODUCTS
    products = te.compute(long((padded, multiple(columns, panel))), value, name=name)
    placed = te.compute(
        long((*outer, columns)),
        lambda *at: products[flattened(at[:-1], outer), at[-1]],
        name=PLACED,
    )
    return te.create_prim_func([given, weights, placed])


def _element(data: Any, indices: Sequence[Any], words: Words | None) -> Any:
    """An element of the data; where it has no words, but is multiplied by some, its neighbours."""
    if words is None or words.word is not None:
        return data[tuple(indices)]
    first = indices[-1] * words.count
    return [data[(*indices[:-1], first + index)] for index in range(words.count)]


def _of_words(data: Any, words: Words, blocks: Blocks) -> Any:
    """The data with whole words in its innermost dimension, the last ones filled with zeros."""
    *outer, inner = (int(extent) for extent in data.shape)
    width = -(-blocks.channels // words.count)  # words of a block

    def number(channel: Any, *at: Any) -> Any:
        if blocks.channels % words.count == 0:
            return data[at]
        return tirx.if_then_else(channel < blocks.channels, data[at], tirx.const(0, data.dtype))

    if words.word is None:
        if inner % words.count == 0:
            return data
        shape = long((*outer, width * words.count))
        return te.compute(shape, lambda *at: number(at[-1], *at), name=FILLED)
    make = words.word

    def word(*at: Any) -> Any:
        *before, index = at
        first = index if blocks.count == 1 else index // width * blocks.channels + index % width
        apart = [index * width for index in range(words.count)]
        return make([number(first + step, *before, first + step) for step in apart])

    return te.compute(long((*outer, blocks.count * width)), word, name=PAIRS)
