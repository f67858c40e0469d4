"""The sketch of attention: blocks of rows go through all stages before the next block."""

from __future__ import annotations

import math
from typing import Any

from tlmd.alternatives.attention import attention as stages
from tlmd.alternatives.scheduling import Sketch, StageSchedule
from tlmd.alternatives.words import bfloat16

# Limits of a kernel, which is unrolled: with larger ones LLVM takes seconds.
_MOST_VECTORS, _MOST_UNROLLED = 4, 4


def sketches(program: StageSchedule) -> list[Sketch]:
    """Sketches of a program; those for the matrix unit are in `amx`."""
    return [by_rows] if stages.KEYS in program.names else []


def by_rows(program: StageSchedule) -> None:
    """Compute each stage at the loop over blocks of rows; the keys are packed before."""
    schedule = program.schedule
    scores, context = program.block(stages.SCORES), program.block(stages.CONTEXT)
    _, rows, keys, depth = schedule.get_loops(scores)
    width = int(schedule.get(scores).reads[1].source.ty.shape[-1]) // program.lanes
    blocks, tiles, row = schedule.sample_perfect_tile(rows, 3, program.kernels.most_rows(width))
    panel, vectors, lane = schedule.split(keys, [None, width, program.lanes])
    _, key_vectors = schedule.sample_perfect_tile(vectors, 2, _MOST_VECTORS)
    schedule.fuse(panel, vectors, lane)  # the block is moved as a whole
    depth_factors = schedule.sample_perfect_tile(depth, 2, _MOST_UNROLLED)
    *_, columns, summed = schedule.get_loops(context)
    vectors, lane = program.vectors(columns)
    _, value_vectors = schedule.sample_perfect_tile(vectors, 2, _MOST_VECTORS)
    schedule.fuse(vectors, lane)
    summed_factors = schedule.sample_perfect_tile(summed, 2, _MOST_UNROLLED)

    place(program, (blocks, tiles, row))
    _product(program, context, (row, value_vectors), summed_factors)
    _product(program, scores, (row, key_vectors), depth_factors)
    for name in (_written(program.names), stages.BIASED, stages.QUERY, stages.VALUES):
        if name in program.names:
            (inner,) = program.loops(name, 1)
            width = math.gcd(int(schedule.get(inner).extent), program.lanes)
            schedule.vectorize(schedule.split(inner, [None, width])[1])
    reduce_lanes(program)
    _keys(program)


def reduce_lanes(program: StageSchedule) -> None:
    """Find maxima and sums by vectors first, and then of the few lanes that are left."""
    schedule = program.schedule
    for *vectors, last in (stages.MAXIMA, stages.SUMS):
        for name in (name for name in vectors if name in program.names):
            lane, part = program.loops(name, 2)
            schedule.reorder(part, lane)
            schedule.vectorize(lane)
        schedule.unroll(program.loops(last, 1)[0])


def _written(names: list[str]) -> str:
    """The block that writes the weights: those in pairs are rounded where they are computed."""
    return stages.SHORT_WEIGHTS if stages.SHORT_WEIGHTS in names else stages.WEIGHTS


def place(program: StageSchedule, rows: tuple[Any, ...], is_fused: bool = False) -> Any:
    """Order the loops of the result, and compute at its blocks of rows what it needs.

    `is_fused`: the loops over images, heads and blocks are one. Returns the loop over blocks.
    """
    schedule, names = program.schedule, program.names
    last = program.block(names[-1])
    images, row, heads, columns = schedule.get_loops(last)
    block, tile, inner = schedule.split(row, [None, *rows[1:]])
    vectors, lane = program.vectors(columns)
    schedule.reorder(images, heads, block, tile, inner, vectors, lane)
    program.kernel((vectors,), lane)
    block = schedule.fuse(images, heads, block) if is_fused else block
    written = _written(names)
    for name in names[names.index(stages.SHIFTED) : names.index(written)]:
        schedule.compute_inline(program.block(name))
    moved = names[names.index(stages.SCORES) : names.index(stages.SHIFTED)]
    moved += names[names.index(written) : -1]
    moved = [name for name in moved if name not in (stages.LIMITS, stages.VALUES)]
    if stages.QUERY in names:
        moved = [stages.QUERY, *moved]
    for name in reversed(moved):
        schedule.compute_at(program.block(name), block, preserve_unit_loops=True)
    return block


def _product(program: StageSchedule, block: Any, kernel: tuple[Any, Any], sums: Any) -> None:
    """A GEMM of the rows of a block, with a kernel of rows x vectors."""
    schedule = program.schedule
    rows, column, summed = schedule.get_loops(block)[-3:]
    tile, row = schedule.split(rows, [None, kernel[0]])
    panel, vector, lane = schedule.split(column, [None, kernel[1], program.lanes])
    outer, unrolled = schedule.split(summed, list(sums))
    schedule.reorder(panel, tile, outer, unrolled, row, vector, lane)
    if stages.QUERY in program.names:
        program.dot_of_words(bfloat16.WORDS, (unrolled, row, vector), lane, outer)
    else:
        program.kernel((unrolled, row, vector), lane)


def _keys(program: StageSchedule) -> None:
    """Transpose the keys by square tiles, which are loaded and stored by whole vectors."""
    schedule = program.schedule
    depth, column = program.loops(stages.KEYS, 2)
    outer, inner = program.vectors(depth)
    vectors, lane = program.vectors(column)
    schedule.reorder(outer, vectors, inner, lane)
    program.kernel((inner,), lane)
