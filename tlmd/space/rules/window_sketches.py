"""A sketch for operators of each channel alone: depthwise convolutions, pools and means.

The channels are the last dimension, and fill vectors. A tile of rows x columns x vectors of the
result stays in registers until its whole window is summed, and the padding is a condition. TVM's
rules mostly keep the tile in memory, or copy the padded data first.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir import Schedule

from tlmd.alternatives.expressions import REDUCTION, SPATIAL
from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.scheduling import StageSchedule, block_names, is_spatial
from tlmd.space.sketches import PARALLEL

_MOST_ROWS, _MOST_COLUMNS, _MOST_VECTORS = 2, 14, 4
_MOST_UNROLLED = 8  # columns of a window
_FEWEST_LANES = 4


def sketch(module: IRModule, unit: VectorUnit, parallel: int) -> list[Any]:
    """The trace of the sketch; empty where the program does anything else.

    `unit`: vectors of the target; `parallel`: the default extent of parallel loops.
    """
    program = StageSchedule(Schedule(module, seed=1), unit)
    schedule = program.schedule
    blocks = {name: schedule.get(program.block(name)) for name in program.names}
    reductions = [name for name, block in blocks.items() if not is_spatial(block)]
    if len(reductions) != 1 or not is_by_channel(block := blocks[reductions[0]]):
        return []
    lanes = math.gcd(int(spatial_axes(block)[-1].dom.extent), unit.lanes)
    program.unit = replace(unit, lanes=lanes)
    if program.lanes < _FEWEST_LANES:
        return []
    try:
        for name in program.names[: program.names.index(reductions[0])]:
            schedule.compute_inline(program.block(name))
    except RuntimeError:  # several blocks use it
        return []
    _tile(program, reductions[0], len(spatial_axes(block)))
    schedule.annotate(program.block("root"), PARALLEL, parallel)
    return [schedule.trace]


def spatial_axes(block: Any) -> list[Any]:
    """The axes of a block that are no sums."""
    return [one for one in block.iter_vars if int(one.iter_type) == SPATIAL]


def is_by_channel(block: Any) -> bool:
    """Whether each channel of the result, its last dimension, depends on that of the data only."""
    spatial = spatial_axes(block)
    sums = [one for one in block.iter_vars if int(one.iter_type) == REDUCTION]
    ordered = list(block.iter_vars) == [*spatial, *sums]
    if not ordered or len(spatial) < 2 or not block.reads or len(block.writes) != 1:
        return False
    channel = spatial[-1].var
    single = [one.var for one in sums if int(one.dom.extent) == 1]
    lasts = [region.region[-1].min for region in (*block.reads, *block.writes)]
    return all(_is_index(last, channel, single) for last in lasts)


def _is_index(index: Any, channel: Any, single: list[Any]) -> bool:
    """Whether an index is the channel; `single`: variables that are always zero."""
    if isinstance(index, tirx.Add):
        zero = any(index.b.same_as(one) for one in single)
        return zero and _is_index(index.a, channel, single)
    return bool(index.same_as(channel))


def _tile(program: StageSchedule, name: str, spatial: int) -> None:
    """Tile the `spatial` loops of the block `name`, and write each tile when it is summed."""
    schedule, block = program.schedule, program.block(name)
    if program.names[-1] == name:
        schedule.cache_write(block, 0, "global")
        program.names = block_names(schedule)
    loops = list(schedule.get_loops(block))
    *outer, column, channel = loops[:spatial]
    sums = loops[spatial:]
    vectors, lane = program.vectors(channel)
    vectors, vector = program.tile(vectors, 2, _MOST_VECTORS)
    columns, inner_column = program.tile(column, 2, _MOST_COLUMNS)
    kernel = [inner_column, vector]
    if outer[1:]:
        outer[-1], row = program.tile(outer[-1], 2, _MOST_ROWS)
        kernel.insert(0, row)
    schedule.reorder(vectors, *outer, columns, *sums, *kernel, lane)
    write(program, name, columns, len(kernel) + 1)
    program.kernel((*unrolled(program, sums), *kernel), lane)


def unrolled(program: StageSchedule, sums: list[Any]) -> list[Any]:
    """The innermost loops of a window that are unrolled: its columns, and loops of one step."""
    loops: list[Any] = []
    for loop in reversed(sums):
        steps = int(program.schedule.get(loop).extent)
        if steps > _MOST_UNROLLED:
            break
        loops.append(loop)
        if steps > 1:
            break
    return loops


def write(program: StageSchedule, name: str, at: Any, tiled: int) -> None:
    """Compute at the loop `at` all that follows; its `tiled` innermost loops are unrolled."""
    after = program.names[program.names.index(name) + 1]
    last = program.inline_from(after)
    program.schedule.reverse_compute_at(program.block(last), at, preserve_unit_loops=True)
    *rest, channel = program.loops(last, tiled)
    vectors, lane = program.vectors(channel)
    program.kernel((*rest, vectors), lane)
