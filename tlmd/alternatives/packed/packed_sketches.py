"""The sketches of GEMMs with packed weights: a kernel of rows x vectors, and the loops around it.

In the first sketch a tile of the result is finished before the next one begins. In the second one
a block of the sum is done for all rows of a panel before the next block, so that long panels of
weights stay in the caches (Goto and van de Geijn, TOMS'08, section 4).

Each panel of a grouped convolution needs other channels of the same pixels, so with these two it
reads all of the image in steps. In a third sketch a block of rows is done for all panels before the
next block. A grouped convolution with padded data has only one sketch: the channels of a panel are
padded for some rows of the image when the panel begins, so that the kernel reads them from the
first-level cache, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tlmd.alternatives import contraction
from tlmd.alternatives.contraction import dtype_of, written_lanes
from tlmd.alternatives.expressions import uses
from tlmd.alternatives.packed import packed as stages
from tlmd.alternatives.scheduling import Sketch, StageSchedule
from tlmd.alternatives.words import bfloat16, int8
from tlmd.alternatives.words.words import Words

_MOST_VECTORS, _MOST_UNROLLED, _MOST_IMAGE_ROWS = 4, 8, 16


@dataclass(frozen=True)
class _GemmLoops:
    """The loops of the GEMM."""

    blocks: Sequence[Any]
    """Loops over the blocks of rows, where there are any."""

    panel: Any
    part: Any
    """Loop over the tiles of a panel."""

    tiles: Sequence[Any]
    """Loops over the tiles of rows: of the image, where a block has such, and of one of them."""

    sums: Sequence[Any]
    kernel: Sequence[Any]

    made: str
    """The name of the block that makes the data; empty: they are read where they are."""


_RowLoops = tuple[Sequence[Any], Sequence[Any], Any]
"""Loops over blocks of rows, over the tiles of a block, and over the rows of a tile."""

_SplitRows = Callable[[StageSchedule, Any, int], _RowLoops]
"""Splits the loop of all rows, for panels of so many vectors."""


def sketches(program: StageSchedule) -> list[Sketch]:
    """Sketches of a program."""
    if stages.GROUPED in program.names:
        return [by_panels]
    return [by_tiles, by_blocks, *([by_rows] if _is_grouped(program) else [])]


def by_tiles(program: StageSchedule) -> None:
    """Each tile of the result with its whole sum."""
    _by_tiles(program, _nest(program, _tiled_rows))


def by_blocks(program: StageSchedule) -> None:
    """Each block of the sum for all rows of a panel."""
    nest = _nest(program, _tiled_rows)
    *sums, last = nest.sums
    block, outer, unrolled = program.tile(last, 3, _MOST_UNROLLED)
    order = (nest.panel, nest.part, *sums, block, *nest.tiles, outer, unrolled, *nest.kernel)
    program.schedule.reorder(*order)
    _finish(program, nest, (*sums, block, outer, unrolled), nest.part)


def by_rows(program: StageSchedule) -> None:
    """Each block of rows for all panels."""
    _by_tiles(program, _nest(program, partial(_tiled_rows, loops=3)))


def by_panels(program: StageSchedule) -> None:
    """Each block of rows of the image for all panels; a panel's data are made when it begins."""
    nest = _nest(program, _blocks_of_image)
    _by_tiles(program, nest, nest.panel)


def _by_tiles(program: StageSchedule, nest: _GemmLoops, made_at: Any | None = None) -> None:
    """`made_at`: the loop at which the data are made; None: before all loops."""
    *sums, last = nest.sums
    outer, unrolled = program.tile(last, 2, _MOST_UNROLLED)
    order = (*nest.blocks, nest.panel, nest.part, *nest.tiles, *sums, outer, unrolled)
    program.schedule.reorder(*order, *nest.kernel)
    if made_at is not None:
        program.schedule.compute_at(program.block(nest.made), made_at, preserve_unit_loops=True)
    _finish(program, nest, (*sums, outer, unrolled), nest.tiles[-1])


def _is_grouped(program: StageSchedule) -> bool:
    """Whether the columns of a panel need only some of the channels."""
    products = program.schedule.get(program.block(stages.PRODUCTS))
    column = products.iter_vars[1].var
    return uses(products.reads[0].region[-1].min, column)


def _tiled_rows(program: StageSchedule, rows: Any, vectors: int, loops: int = 2) -> _RowLoops:
    """Tiles of rows; with three `loops` in blocks of several tiles."""
    *blocks, tile, row = program.tile(rows, loops, program.kernels.most_rows(vectors))
    return blocks, (tile,), row


def _blocks_of_image(program: StageSchedule, rows: Any, vectors: int) -> _RowLoops:
    """Blocks of whole rows of the image; none where no good kernel divides its width."""
    *_, height, width, _ = program.extents(program.block(stages.PLACED))
    blocks, lines = [], []
    if program.kernels.dividing_rows(width, vectors) is not None:
        image, line, rows = program.schedule.split(rows, [None, height, width])
        block, line = program.tile(line, 2, _MOST_IMAGE_ROWS)
        blocks, lines = [image, block], [line]
    tile, row = _kernels(program, rows, vectors)
    return blocks, [*lines, tile], row


def _kernels(program: StageSchedule, rows: Any, vectors: int) -> list[Any]:
    """Tiles of as many rows as the largest good kernel has; sampled where none divides them.

    Sampled ones were too small: benchmarks/LOG.md, "Grouped convolutions: a sketch of their own".
    """
    kernel = program.kernels.dividing_rows(int(program.schedule.get(rows).extent), vectors)
    if kernel is None:
        return program.tile(rows, 2, program.kernels.most_rows(vectors))
    return list(program.schedule.split(rows, [None, kernel]))


def _tiled_vectors(program: StageSchedule, vectors: Any) -> list[Any]:
    """Loops over the parts of a panel, and over the vectors of a part.

    All vectors of `GROUPED`, whose panels are no wider than a good kernel, are one part.
    """
    if stages.GROUPED in program.names:
        return list(program.schedule.split(vectors, [1, None]))
    return program.tile(vectors, 2, _MOST_VECTORS)


def _nest(program: StageSchedule, split_rows: _SplitRows) -> _GemmLoops:
    schedule = program.schedule
    name = _products(program)
    before = program.names[: program.names.index(name)]
    for one in (inlined := _inlined(program, before)):
        schedule.compute_inline(program.block(one))
    products = program.block(name)
    rows, columns, *sums = schedule.get_loops(products)
    _, _, width = schedule.get(products).reads[1].source.ty.shape
    wide = int(width) // program.lanes
    panel, vectors, lane = schedule.split(columns, [None, wide, program.lanes])
    blocks, tiles, row = split_rows(program, rows, wide)
    part, vector = _tiled_vectors(program, vectors)
    made = "".join(before[len(inlined) :])
    return _GemmLoops(blocks, panel, part, tiles, sums, (row, vector, lane), made)


def _finish(program: StageSchedule, nest: _GemmLoops, sums: Sequence[Any], at: Any) -> None:
    """Unroll the kernel, and compute at the loop `at` what is done with the result.

    `sums`: the loops of the sum, the outermost one first.
    """
    row, vector, lane = nest.kernel
    parts, written = placed_at(program, at)
    program.kernel((parts,), written)
    words = _words(program)
    if words is None:
        program.kernel((sums[-1], row, vector), lane)
    else:
        program.dot_of_words(words, (sums[-1], row, vector), lane, sums[-2])
    if nest.made == stages.PAIRS:
        _round(program)
    elif nest.made:
        _pad(program, nest.made)


def placed_at(program: StageSchedule, at: Any) -> tuple[Any, Any]:
    """Compute at the loop `at` what is done with the result.

    Returns the loop over the vectors of a row, and the loop over their elements.
    """
    last, extents = program.place_rows(stages.PLACED, at)
    column = program.schedule.get_loops(last)[-1]
    lanes = written_lanes(extents[-1], program.lanes)
    parts, written = program.schedule.split(column, [None, lanes])
    return parts, written


def _products(program: StageSchedule) -> str:
    """Name of the block that multiplies."""
    return stages.GROUPED if stages.GROUPED in program.names else stages.PRODUCTS


def _inlined(program: StageSchedule, before: list[str]) -> list[str]:
    """Blocks `before` the products that are no passes: paddings of words, or of nothing."""
    if before[-1:] in ([stages.PAIRS], [stages.FILLED]):
        return before[:-1]
    is_copy = before and contraction.is_copy(program.schedule.get(program.block(before[0])))
    return before if is_copy else []


def _words(program: StageSchedule) -> Words | None:
    """The words of a program that multiplies short numbers."""
    dtype = dtype_of(program.schedule.get(program.block(_products(program))).writes[0].source)
    if dtype == int8.WORDS.summed:
        return int8.WORDS
    return bfloat16.WORDS if stages.PAIRS in program.names else None


def _round(program: StageSchedule) -> None:
    """Round the data to pairs, by whole vectors."""
    schedule, pairs = program.schedule, program.block(stages.PAIRS)
    inner = schedule.get_loops(pairs)[-1]
    _, element = schedule.split(inner, [None, math.gcd(program.extents(pairs)[-1], program.lanes)])
    schedule.vectorize(element)


def _pad(program: StageSchedule, name: str) -> None:
    """Copy whole vectors of channels where there are any."""
    first = program.block(name)
    if program.extents(first)[-1] % program.lanes == 0:
        _, lane = program.vectors(program.schedule.get_loops(first)[-1])
        program.schedule.vectorize(lane)
