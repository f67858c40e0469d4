"""The sketches of Strassen's programs: how their stages are tiled and placed.

In the first sketch a block of rows goes through all stages before the next one, so that its sums
stay in the caches, and a tile of the output is finished before the next one begins. In the second
one the sums of all rows are made first. For a panel of columns and a block of rows each product is
made before the next one, so that its weights stay in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tlmd.alternatives.contraction import shape_of
from tlmd.alternatives.scheduling import Sketch, StageSchedule
from tlmd.alternatives.strassen import strassen as stages

_MOST_VECTORS, _MOST_UNROLLED = 4, 8


def sketches(_: StageSchedule) -> list[Sketch]:
    """Sketches of a program."""
    return [by_rows, by_panels]


def by_rows(program: StageSchedule) -> None:
    """Blocks of rows go through all stages, tile by tile."""
    schedule = program.schedule
    rows, vectors, depth = _factors(program, 2)
    block, tile, panel, inner = _combined(program, rows)
    schedule.reorder(block, panel, tile, *inner)
    index, row, part, vector, lane, summed = _products_at(program, tile, vectors)
    outer, unrolled = schedule.split(summed, depth)
    schedule.reorder(index, part, outer, unrolled, row, vector, lane)
    program.kernel((unrolled, row, vector), lane)
    schedule.compute_at(program.block(stages.SUMS), block, preserve_unit_loops=True)
    _finish(program, tile)


def by_panels(program: StageSchedule) -> None:
    """Each product for all rows of a block and a panel."""
    schedule = program.schedule
    rows, vectors, depth = _factors(program, 3)
    block, tile, panel, inner = _combined(program, rows)
    schedule.reorder(panel, block, tile, *inner)
    index, row, part, vector, lane, summed = _products_at(program, block, vectors)
    kernels, row = schedule.split(row, [None, rows[-1]])
    deep, outer, unrolled = schedule.split(summed, depth)
    schedule.reorder(index, part, deep, kernels, outer, unrolled, row, vector, lane)
    program.kernel((unrolled, row, vector), lane)
    _finish(program, tile)


def _factors(program: StageSchedule, deep: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Factors of the rows of a part, of the vectors of a panel, and of the sum in `deep` loops."""
    schedule = program.schedule
    for name in program.names[: program.names.index(stages.SUMS)]:
        schedule.compute_inline(program.block(name))
    _, rows, _, columns, depth = schedule.get_loops(program.block(stages.PRODUCTS))
    vectors, lane = program.vectors(columns)
    most_rows = program.kernels.most_rows(int(schedule.get(vectors).extent))
    factors = (
        list(schedule.sample_perfect_tile(rows, 3, most_rows)),
        list(schedule.sample_perfect_tile(vectors, 2, _MOST_VECTORS)),
        list(schedule.sample_perfect_tile(depth, deep, _MOST_UNROLLED)),
    )
    schedule.fuse(vectors, lane)  # the block is moved as a whole
    return factors


def _combined(program: StageSchedule, rows: Sequence[Any]) -> tuple[Any, Any, Any, list[Any]]:
    """Split the loops of the output's parts: blocks and tiles of rows, panels, and those inside."""
    schedule = program.schedule
    combined = program.block(stages.COMBINED)
    products = schedule.get(program.block(stages.PRODUCTS)).writes[0].source
    _, part_rows, panels, width = shape_of(products)
    all_rows, columns = schedule.get_loops(combined)
    of_part, of_row = schedule.split(all_rows, [part_rows, None])
    block, tile, row = schedule.split(of_part, list(rows))
    panel, of_column, vector, lane = schedule.split(
        columns, [panels, None, width // program.lanes, program.lanes]
    )
    program.kernel((of_row, of_column), lane)
    return block, tile, panel, [row, vector, of_row, of_column, lane]


def _products_at(program: StageSchedule, at: Any, vectors: Sequence[Any]) -> tuple[Any, ...]:
    """Compute the products at a loop: their index, rows, parts of a panel, vectors, lanes, sum."""
    schedule = program.schedule
    block = program.block(stages.PRODUCTS)
    schedule.compute_at(block, at, preserve_unit_loops=True)
    index, row, _, columns, summed = program.loops(stages.PRODUCTS, 5)
    vector, lane = program.vectors(columns)
    part, vector = schedule.split(vector, list(vectors))
    return index, row, part, vector, lane, summed


def _finish(program: StageSchedule, tile: Any) -> None:
    """Make the sums by vectors, and write each tile of the output as soon as it is there."""
    schedule = program.schedule
    index, row, summed = program.loops(stages.SUMS, 3)
    vector, lane = program.vectors(summed)
    schedule.reorder(row, vector, index, lane)
    program.kernel((index,), lane)
    program.place_rows(stages.PLACED, tile)
    vector, lane = program.vectors(program.loops(program.names[-1], 1)[0])
    program.kernel((vector,), lane)
