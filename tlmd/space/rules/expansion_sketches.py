"""A sketch for an expansion and the depthwise convolution that reads it, as in MobileNet's blocks.

An expansion is a convolution that makes few channels many. Its result can be larger than the
caches, and only the depthwise convolution needs it. So a strip of rows is computed for a few
channels after the other, one line of a cache, and the depthwise convolution reads it from a near
cache. The rows at a strip's edges are computed twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import IRModule
from tvm.s_tir import Schedule

from tlmd.alternatives.contraction import shape_of
from tlmd.alternatives.expressions import uses
from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.scheduling import StageSchedule, block_names, is_spatial
from tlmd.space.rules import window_sketches
from tlmd.space.sketches import PARALLEL

_STRIP_BYTES = 400 << 10
_MOST_COLUMNS, _MOST_UNROLLED = 14, 8
_OTHERS = 4  # registers of weights and data
_FEWEST_LANES = 4
_LINE = 16  # elements of a cache line
_RANK = 4  # images, rows, columns, channels


@dataclass(frozen=True)
class _Stages:
    """The names of the blocks."""

    expansion: str

    kept: str
    """The last block of the expansion's shape; the depthwise convolution reads it."""

    depthwise: str


def sketch(module: IRModule, unit: VectorUnit, parallel: int, cores: int) -> list[Any]:
    """The trace of the sketch; empty where the program is anything else.

    `unit`: vectors of the target; `parallel`: the default extent of parallel loops; `cores`: of
    the target.
    """
    program = StageSchedule(Schedule(module, seed=1), unit)
    stages = _find(program)
    if stages is None:
        return []
    schedule = program.schedule
    channels = _extents(program, stages.depthwise)[-1]
    program.unit = replace(unit, lanes=math.gcd(channels, unit.lanes))
    if program.lanes < _FEWEST_LANES:
        return []
    try:
        _inline(program, stages)
    except RuntimeError:  # several blocks use it
        return []
    wide = math.gcd(channels // program.lanes, max(1, _LINE // program.lanes))
    most = min(_MOST_COLUMNS, (unit.registers - _OTHERS) // wide)
    rows = _rows(program, stages, wide * program.lanes, cores)
    parts = _tile_depthwise(program, stages.depthwise, rows, wide, most)
    for name in dict.fromkeys((stages.kept, stages.expansion)):
        schedule.compute_at(program.block(name), parts, preserve_unit_loops=True)
    _tile_expansion(program, stages, most)
    schedule.annotate(program.block("root"), PARALLEL, parallel)
    return [schedule.trace]


def _find(program: StageSchedule) -> _Stages | None:
    blocks = {name: program.schedule.get(program.block(name)) for name in program.names}
    sums = [name for name, block in blocks.items() if not is_spatial(block)]
    if len(sums) != 2:
        return None
    expansion, depthwise = sums
    is_expanded = _is_expansion(blocks[expansion]) and window_sketches.is_by_channel(
        blocks[depthwise]
    )
    shapes = {name: _extents(program, name) for name in program.names}
    if not is_expanded or len(shapes[depthwise]) != _RANK:
        return None
    between = program.names[program.names.index(expansion) : program.names.index(depthwise)]
    kept = [name for name in between if shapes[name] == shapes[expansion]][-1]
    return _Stages(expansion, kept, depthwise)


def _is_expansion(block: Any) -> bool:
    """Whether each element is a sum of data times a column of weights."""
    spatial = [one.var for one in window_sketches.spatial_axes(block)]
    if len(spatial) != _RANK or len(block.reads) != 2:
        return False
    data, weights = (region.region[-1].min for region in block.reads)
    return bool(weights.same_as(spatial[-1]) and not uses(data, spatial[-1]))


def _extents(program: StageSchedule, name: str) -> list[int]:
    """Shape of the result of a block."""
    axes = window_sketches.spatial_axes(program.schedule.get(program.block(name)))
    return [int(one.dom.extent) for one in axes]


def _rows(program: StageSchedule, stages: _Stages, together: int, cores: int) -> int:
    """Rows of the result in a strip: those of which the busiest core computes fewest in all.

    The expansion's data and the channels that are computed `together` must fit into a near cache,
    because the data are read again for the next ones. The rows at the edges of a strip count, too.
    """
    images, rows, _, channels = _extents(program, stages.depthwise)
    _, read, columns, _ = _extents(program, stages.expansion)
    window = program.schedule.get(program.block(stages.depthwise)).iter_vars[_RANK].dom.extent
    data = program.schedule.get(program.block(stages.expansion)).reads[0].source
    step = -(-read // rows)
    row_bytes = 4 * step * (together * columns + math.prod(shape_of(data)[1:]) // read)

    def computed(count: int) -> int:
        strips = images * (channels // together) * (rows // count)
        return -(-strips // cores) * (count * step + max(0, int(window) - step))

    fitting = [n for n in range(1, rows + 1) if rows % n == 0 and n * row_bytes <= _STRIP_BYTES]
    return min(reversed(fitting), key=computed, default=1)


def _inline(program: StageSchedule, stages: _Stages) -> None:
    """Inline what comes before the depthwise convolution, but what is kept and a first padding."""
    *before, _ = program.names[: program.names.index(stages.depthwise) + 1]
    first = before.index(stages.expansion)
    padding = before[first - 1] if first and _is_padding(program, before[first - 1]) else None
    for name in before:
        if name not in (padding, stages.expansion, stages.kept):
            program.schedule.compute_inline(program.block(name))
    if program.names[-1] == stages.depthwise:
        program.schedule.cache_write(program.block(stages.depthwise), 0, "global")
    program.names = block_names(program.schedule)


def _is_padding(program: StageSchedule, name: str) -> bool:
    block = program.schedule.get(program.block(name))
    return len(block.reads) == 1 and shape_of(block.reads[0].source) != _extents(program, name)


def _tile_depthwise(program: StageSchedule, name: str, rows: int, wide: int, most: int) -> Any:
    """A kernel of columns x `wide` vectors in a strip of rows; the loop over parts of channels."""
    schedule = program.schedule
    loops = list(schedule.get_loops(program.block(name)))
    image, row, column, channel = loops[:_RANK]
    sums = loops[_RANK:]
    vectors, lane = program.vectors(channel)
    strips, row = schedule.split(row, [None, rows])
    columns, inner = program.tile(column, 2, most)
    parts, vector = schedule.split(vectors, [None, wide])
    schedule.reorder(image, strips, parts, row, columns, *sums, inner, vector, lane)
    window_sketches.write(program, name, columns, 2)
    program.kernel((*window_sketches.unrolled(program, sums), inner, vector), lane)
    return parts


def _tile_expansion(program: StageSchedule, stages: _Stages, most: int) -> None:
    """A kernel of columns x vectors, and with it what is kept of its result."""
    schedule = program.schedule
    block = program.block(stages.expansion)
    sums = len(schedule.get(block).iter_vars) - _RANK
    loops = list(schedule.get_loops(block))[-_RANK - sums :]
    image, row, column, channel = loops[:_RANK]
    *single, innermost = loops[_RANK:]
    columns, inner = program.tile(column, 2, most)
    outer, unrolled = program.tile(innermost, 2, _MOST_UNROLLED)
    vector, lane = program.vectors(channel)
    schedule.reorder(image, row, columns, *single, outer, unrolled, inner, vector, lane)
    program.kernel((*window_sketches.unrolled(program, single), unrolled, inner, vector), lane)
    if stages.kept != stages.expansion:
        kept = program.block(stages.kept)
        schedule.reverse_compute_at(kept, columns, preserve_unit_loops=True)
        *_, inner, channel = schedule.get_loops(kept)
        vector, lane = program.vectors(channel)
        program.kernel((inner, vector), lane)
