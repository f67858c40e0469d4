"""The sketch of attention for the CPU's matrix unit: blocks of rows go through all stages."""

from __future__ import annotations

from typing import Any

from tlmd.alternatives.amx import amx_packed
from tlmd.alternatives.amx.amx import Kernel
from tlmd.alternatives.amx.amx_attention import COLUMNS, KEYS, PANEL
from tlmd.alternatives.amx.amx_code import BF16, EDGE
from tlmd.alternatives.amx.amx_sketches import begin, call, make, most_steps
from tlmd.alternatives.attention import attention as stages
from tlmd.alternatives.attention.attention_sketches import place, reduce_lanes
from tlmd.alternatives.contraction import shape_of
from tlmd.alternatives.scheduling import Sketch, StageSchedule

_MOST_TILES = 16


def sketches(_: StageSchedule) -> list[Sketch]:
    """Sketches of a program."""
    return [by_tiles]


def by_tiles(program: StageSchedule) -> None:
    """Compute each stage at the loop over blocks of rows; keys and values are packed before."""
    schedule = program.schedule
    scores, context = program.block(stages.SCORES), program.block(stages.CONTEXT)
    _, rows, *_ = schedule.get_loops(scores)
    height = amx_packed.rows_of_tiles(program.extents(scores)[1], COLUMNS) * EDGE
    tiles, row = schedule.split(rows, [None, height])
    factors = schedule.sample_perfect_tile(tiles, 2, _MOST_TILES)
    schedule.fuse(tiles, row)  # the block is moved as a whole
    kernels = [_kernel(program, block, height // EDGE) for block in (scores, context)]

    outermost = place(program, (*factors, height), is_fused=True)
    begin(program, kernels[0], outermost)
    for block, kernel in zip((scores, context), kernels, strict=True):
        _product(program, block, kernel)
    if stages.BIASED in program.names:
        (inner,) = program.loops(stages.BIASED, 1)
        schedule.vectorize(program.vectors(inner)[1])
    for name in (stages.QUERY, stages.SHORT_WEIGHTS):
        make(program, name, EDGE)
    _pack(program, KEYS, EDGE)
    _pack(program, stages.VALUES, 1)
    reduce_lanes(program)


def _kernel(program: StageSchedule, block: Any, rows: int) -> Kernel:
    """The kernel of the products of a block."""
    *_, words, parts, _ = shape_of(program.schedule.get(block).reads[-1].source)
    return Kernel(BF16, rows, COLUMNS, most_steps(words // EDGE), parts)


def _product(program: StageSchedule, block: Any, kernel: Kernel) -> None:
    """A GEMM of the rows of a block, by the kernel."""
    schedule = program.schedule
    rows, columns, words = schedule.get_loops(block)[-3:]
    tile, row = schedule.split(rows, [None, kernel.rows * EDGE])
    panel, column = schedule.split(columns, [None, PANEL])
    depth, word = schedule.split(words, [None, kernel.steps * EDGE])
    schedule.reorder(panel, depth, tile, row, column, word)
    call(program, kernel, block, depth, row)


def _pack(program: StageSchedule, name: str, square: int) -> None:
    """Make panels by whole vectors; keys are transposed by tiles of so many words."""
    schedule = program.schedule
    word, part, column = program.loops(name, 3)
    outer, inner = schedule.split(word, [None, square])
    vector, lane = program.vectors(column)
    schedule.reorder(outer, vector, inner, part, lane)
    program.kernel((inner, part), lane)
