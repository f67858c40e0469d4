"""A sketch for programs that only move data and change its last dimension: square-like tiles.

TVM's rules tile only what reads data more than once. A transposed copy without tiles reads a whole
cache line for each element.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir import Schedule

from tlmd.alternatives.scheduling import block_names, is_spatial
from tlmd.space.sketches import PARALLEL

_MOST = 64  # elements of a tile's side


def sketch(module: IRModule, parallel: int) -> list[Any]:
    """The trace of the sketch; empty where the program does more than to move data.

    `parallel`: the default extent of parallel loops.
    """
    schedule = Schedule(module, seed=1)
    *inlined, last = block_names(schedule)
    if not all(is_spatial(schedule.get(schedule.get_sblock(n))) for n in (*inlined, last)):
        return []
    try:
        for name in inlined:
            schedule.compute_inline(schedule.get_sblock(name))
    except RuntimeError:  # several blocks use it, or it is an output
        return []
    block = schedule.get_sblock(last)
    rows = _rows(schedule.get(block))
    loops = schedule.get_loops(block)
    if rows is None or len(loops) != len(schedule.get(block).iter_vars):
        return []
    row, columns = loops[rows], schedule.fuse(*loops[rows + 1 :])
    factors = [schedule.sample_perfect_tile(loop, 2, _MOST) for loop in (row, columns)]
    outer_row, inner_row = schedule.split(row, list(factors[0]))
    outer_column, inner_column = schedule.split(columns, list(factors[1]))
    schedule.reorder(outer_column, outer_row, inner_row, inner_column)
    schedule.vectorize(inner_column)
    schedule.annotate(schedule.get_sblock("root"), PARALLEL, parallel)
    return [schedule.trace]


def _rows(block: Any) -> int | None:
    """The dimension of the output that is the last one of the input; None: the last one itself."""
    iterators = [one.var for one in block.iter_vars]
    if not isinstance(block.body, tirx.BufferStore):
        return None
    if not all(i.same_as(v) for i, v in zip(block.body.indices, iterators, strict=True)):
        return None
    lasts = [read.region[-1].min for read in block.reads if len(read.region) > 1]
    places = [i for last in lasts for i, v in enumerate(iterators) if v.same_as(last)]
    moved = [place for place in places if place < len(iterators) - 1]
    return moved[0] if len(set(moved)) == 1 else None
