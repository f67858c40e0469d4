"""The sketches of GEMMs with packed weights: a kernel of rows x vectors, and the loops around it.

In the first sketch a tile of the result is finished before the next one begins. In the second one
a block of the sum is done for all rows of a panel before the next block, so that long panels of
weights stay in the caches (Goto and van de Geijn, TOMS'08, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import TensorLoad
from tvm.tirx import IndexMap

from tlmd.alternatives import contraction
from tlmd.alternatives import packed as stages
from tlmd.alternatives.contraction import shape_of
from tlmd.alternatives.scheduling import StageSchedule
from tlmd.alternatives.words import Words

_MOST_ROWS, _MOST_VECTORS, _MOST_UNROLLED = 14, 4, 8


@dataclass(frozen=True)
class _GemmLoops:
    """The loops of the GEMM."""

    panel: Any
    part: Any
    """Over the tiles of a panel."""

    tile: Any
    """Over the tiles of the rows."""

    sums: Sequence[Any]
    kernel: Sequence[Any]


def by_tiles(program: StageSchedule) -> None:
    """Each tile of the result with its whole sum."""
    nest = _nest(program)
    *sums, last = nest.sums
    outer, unrolled = program.tile(last, 2, _MOST_UNROLLED)
    order = (nest.panel, nest.part, nest.tile, *sums, outer, unrolled, *nest.kernel)
    program.schedule.reorder(*order)
    _finish(program, nest, (*sums, outer, unrolled), nest.tile)


def by_blocks(program: StageSchedule) -> None:
    """Each block of the sum for all rows of a panel."""
    nest = _nest(program)
    *sums, last = nest.sums
    block, outer, unrolled = program.tile(last, 3, _MOST_UNROLLED)
    order = (nest.panel, nest.part, *sums, block, nest.tile, outer, unrolled, *nest.kernel)
    program.schedule.reorder(*order)
    _finish(program, nest, (*sums, block, outer, unrolled), nest.part)


def _nest(program: StageSchedule) -> _GemmLoops:
    schedule = program.schedule
    words = _words(program)
    if words is not None:
        for name in program.names[: program.names.index(words.stage)]:  # a padding
            schedule.compute_inline(program.block(name))
    products = program.block(stages.PRODUCTS)
    rows, columns, *sums = schedule.get_loops(products)
    _, _, width = schedule.get(products).reads[1].source.ty.shape
    panel, vectors, lane = schedule.split(
        columns, [None, int(width) // program.lanes, program.lanes]
    )
    tile, row = program.tile(rows, 2, _MOST_ROWS)
    part, vector = program.tile(vectors, 2, _MOST_VECTORS)
    return _GemmLoops(panel, part, tile, sums, (row, vector, lane))


def _finish(program: StageSchedule, nest: _GemmLoops, sums: Sequence[Any], at: Any) -> None:
    """Unroll the kernel, and compute at the loop `at` what is done with the result.

    `sums`: the loops of the sum, the outermost one first.
    """
    schedule = program.schedule
    row, vector, lane = nest.kernel
    last = program.block(program.inline_from(stages.PLACED))
    extents = program.extents(last)
    schedule.transform_block_layout(last, _as_matrix(extents))
    schedule.reverse_compute_at(last, at, preserve_unit_loops=True)
    _, column = schedule.get_loops(last)[-2:]
    lanes = stages.written_lanes(extents[-1], program.lanes)
    parts, written = schedule.split(column, [None, lanes])
    program.kernel((parts,), written)
    words = _words(program)
    if words is not None:
        program.dot_of_words(words, (sums[-1], row, vector), lane, sums[-2])
        _make_words(program, words)
    else:
        program.kernel((sums[-1], row, vector), lane)
        if program.names[0] != stages.PRODUCTS:
            _pad(program)


def _words(program: StageSchedule) -> Words | None:
    """The words of a program that multiplies short numbers."""
    kinds = (kind for kind in stages.WORDS.values() if kind.stage in program.names)
    return next(kinds, None)


def _make_words(program: StageSchedule, words: Words) -> None:
    """Make words of the data, by whole vectors."""
    schedule, block = program.schedule, program.block(words.stage)
    inner = schedule.get_loops(block)[-1]
    _, element = schedule.split(inner, [None, math.gcd(program.extents(block)[-1], program.lanes)])
    schedule.vectorize(element)


def _as_matrix(extents: Sequence[int]) -> Any:
    """The map from the indices of an element of the output to its row and column."""

    def place(*at: Any) -> tuple[Any, Any]:
        return stages.flattened(at[:-1], extents[:-1]), at[-1]

    return IndexMap.from_func(place, ndim=len(extents), index_dtype="int64")


def _pad(program: StageSchedule) -> None:
    """Copy whole vectors of channels where there are any; nothing where nothing is padded."""
    first = program.block(program.names[0])
    if _is_copy(program.schedule.get(first)):
        program.schedule.compute_inline(first)
    elif program.extents(first)[-1] % program.lanes == 0:
        _, lane = program.vectors(program.schedule.get_loops(first)[-1])
        program.schedule.vectorize(lane)


def _is_copy(block: Any) -> bool:
    """Whether a block stores each element of another buffer of its shape in the same place."""
    value = block.body.value
    if not isinstance(value, TensorLoad):
        return False
    same_place = contraction.same(value.indices, block.body.indices)
    return same_place and shape_of(value.source) == shape_of(block.body.buffer)
