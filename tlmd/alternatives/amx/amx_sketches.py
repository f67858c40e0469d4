"""The sketches of GEMMs for the CPU's matrix unit: a kernel of tiles, and the loops around it.

A long sum is done in blocks, each for several panels of weights and the rows of a block, whose data
then stay in the second-level cache (Goto and van de Geijn, TOMS'08, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import tvm

from tlmd.alternatives.amx import amx_lines
from tlmd.alternatives.amx import amx_packed as stages
from tlmd.alternatives.amx.amx import BYTES, Kernel
from tlmd.alternatives.amx.amx_code import BF16, EDGE, INT8
from tlmd.alternatives.contraction import dtype_of, shape_of
from tlmd.alternatives.packed.packed_sketches import placed_at
from tlmd.alternatives.product_loops import IMPORT
from tlmd.alternatives.scheduling import SketchesOf, StageSchedule
from tlmd.alternatives.words.words import WORD, register

_MOST_STEPS, _MOST_TILES, _MOST_PANELS = 48, 64, 64
_ALIGNED, _APART = 32, 16  # words: rows begin in different sets of the first-level cache


def two_sketches(schedule: Callable[[StageSchedule, bool], None]) -> SketchesOf:
    """The sketches of programs with a matrix, by a function of the program and `makes_block`.

    In the first one the matrix is made before all loops and panels of weights are used for several
    blocks of rows; in the second one each block of rows is made first, for all panels of weights.
    """
    return lambda _: [lambda one: schedule(one, False), lambda one: schedule(one, True)]


def _schedule(program: StageSchedule, makes_block: bool) -> None:
    schedule = program.schedule
    passes = inline_before_matrix(program)
    products = program.block(stages.PRODUCED)
    kernel, blocks = _kernel(program, products)
    rows, columns, words = schedule.get_loops(products)
    over_rows, row = schedule.split(rows, [None, kernel.rows * EDGE])
    block, tile = program.tile(over_rows, 2, _MOST_TILES)
    panels, column = schedule.split(columns, [None, kernel.columns * EDGE])
    depth, word = schedule.split(words, [None, kernel.steps * EDGE])
    if blocks > 1:
        chunk, panel = program.tile(panels, 2, _MOST_PANELS)
    else:
        chunk, panel = schedule.split(panels, [None, 1])
    schedule.reorder(block, chunk, depth, panel, tile, row, column, word)
    if makes_block:
        schedule.compute_at(program.block(stages.MATRIX), block, preserve_unit_loops=True)
    _, lane = placed_at(program, chunk if blocks > 1 else tile)
    schedule.vectorize(lane)
    outermost = block if makes_block else schedule.fuse(block, chunk)
    begin(program, kernel, outermost)
    call(program, kernel, products, depth, row)
    make_matrix(program, kernel, passes)


sketches = two_sketches(_schedule)


def inline_before_matrix(program: StageSchedule) -> list[str]:
    """Inline the blocks before the matrix, but for passes of their own, which are returned."""
    before = program.names[: program.names.index(stages.MATRIX)]
    passes = [one for one in (stages.ROUNDED, amx_lines.LINES) if one in before]
    if amx_lines.LINES in passes and _is_view(program):
        passes.remove(amx_lines.LINES)
    for one in before:
        if one not in passes:
            program.schedule.compute_inline(program.block(one))
    return passes


def make_matrix(program: StageSchedule, kernel: Kernel, passes: Collection[str]) -> None:
    """Make the matrix and what `passes` make before it, by whole vectors."""
    schedule, each = program.schedule, BYTES[kernel.numbers]
    if amx_lines.LINES in passes:
        # The padding at the ends of lines is apart from what is copied.
        *_, place = schedule.get_loops(program.block(amx_lines.LINES))
        schedule.annotate(place, "pragma_loop_partition_hint", 1)
    for one in (stages.ROUNDED, stages.MATRIX):
        if one in program.names:
            make(program, one, EDGE * each)
    matrix = program.block(stages.MATRIX)
    schedule.storage_align(matrix, 0, 0, _ALIGNED * each, _APART * each)


def begin(program: StageSchedule, kernel: Kernel, outermost: Any) -> None:
    """Import the kernel at the outermost loop, which is parallel."""
    # TVM's postprocessors would do this after the zeros are separated, and then it is refused.
    program.schedule.parallel(outermost)
    program.schedule.annotate(outermost, IMPORT, kernel.imported)


def call(program: StageSchedule, kernel: Kernel, products: Any, depth: Any, row: Any) -> None:
    """Call the kernel in its first loop, `row`; `depth`: the loop of the blocks of the sum."""
    schedule = program.schedule
    zeros = schedule.decompose_reduction(products, depth)
    _, lane = schedule.split(schedule.get_loops(zeros)[-1], [None, program.lanes])
    schedule.vectorize(lane)
    register(kernel)
    inner = schedule.blockize(row)
    schedule.annotate(inner, "meta_schedule.auto_tensorize", kernel.dot)


def _kernel(program: StageSchedule, products: Any) -> tuple[Kernel, int]:
    """The kernel of a program, and how many blocks of its steps a sum has."""
    block = program.schedule.get(products)
    data, weights = (read.source for read in block.reads[-2:])
    rows, parts, _ = shape_of(data)
    _, depth, _, columns = shape_of(weights)
    steps, tiles = depth // EDGE, columns // EDGE
    most = most_steps(steps)
    kernel = Kernel(numbers_of(data), stages.rows_of_tiles(rows, tiles), tiles, most, parts)
    return kernel, steps // most


def most_steps(steps: int) -> int:
    """Steps of a call, of so many in a sum: a block of it fits into the second-level cache."""
    return max(step for step in range(1, _MOST_STEPS + 1) if steps % step == 0)


def numbers_of(data: Any) -> str:
    """What a kernel with these data multiplies."""
    return BF16 if dtype_of(data) == WORD else INT8


def _is_view(program: StageSchedule) -> bool:
    """Whether lines are the numbers of the data as they lie, without padding."""
    body = program.schedule.get(program.block(amx_lines.LINES)).body
    return program.names[0] == amx_lines.LINES and isinstance(body.value, tvm.ir.TensorLoad)


def make(program: StageSchedule, name: str, width: int) -> None:
    """Make a stage by whole vectors, all parts of a number together."""
    schedule, block = program.schedule, program.block(name)
    *_, part, element = schedule.get_loops(block)
    width = int(schedule.get(block).annotations.get(amx_lines.VECTOR, width))
    vector, lane = schedule.split(element, [None, width])
    schedule.reorder(vector, part, lane)
    schedule.unroll(part)
    schedule.vectorize(lane)
