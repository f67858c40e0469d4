"""The sketches of Winograd programs: how the stages of `winograd.py` are tiled and placed.

In the first sketch a block of rows of the image goes through all stages before the next block, so
that the tiles stay in the caches. In the second one each stage is done for the whole image, so that
the weights are read once and every stage has its own parallel loop. TVM's own rules cannot make
either: they refuse the first and do not unroll the transformations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule

from tlmd.alternatives import winograd as stages

# Of one inner kernel, which is unrolled: larger ones take LLVM seconds and spill registers.
_MOST_ROWS, _MOST_COLUMNS, _MOST_VECTORS, _MOST_CHANNELS = 2, 14, 4, 4
_PARALLEL = "meta_schedule.parallel"


def sketches(module: Any, lanes: int, parallel: int) -> list[Any]:
    """The traces of the sketches; empty where `module` is no Winograd program.

    `lanes`: elements of a vector; `parallel`: the default extent of parallel loops.
    """
    found = []
    for build in (_by_rows, _by_stages) if stages.PRODUCTS in _names(Schedule(module)) else ():
        schedule = Schedule(module, seed=1)
        build(_Program(schedule, lanes))
        schedule.annotate(schedule.get_sblock("root"), _PARALLEL, parallel)
        found.append(schedule.trace)
    return found


def _names(schedule: Any) -> list[str]:
    """The names of the blocks, in their order."""
    children = schedule.get_child_blocks(schedule.get_sblock("root"))
    return [str(schedule.get(block).name_hint) for block in children]


@dataclass
class _Program:
    """A schedule of a Winograd program, and what its steps need to know."""

    schedule: Any
    lanes: int

    def __post_init__(self) -> None:
        self.names = _names(self.schedule)

    def block(self, name: str) -> Any:
        return self.schedule.get_sblock(name)

    def loops(self, name: str, count: int) -> list[Any]:
        """The innermost `count` loops of a block."""
        return list(self.schedule.get_loops(self.block(name)))[-count:]

    def vectors(self, loop: Any) -> tuple[Any, Any]:
        """Split a loop of channels: the loop over vectors, and the loop over their elements."""
        outer, inner = self.schedule.split(loop, [None, self.lanes])
        return outer, inner


def _by_rows(program: _Program) -> None:
    """Blocks of rows go through all stages; each stage is computed at the block's loop."""
    schedule = program.schedule
    _inline(program)
    _, _, _, rows, columns, outputs, channels = program.loops(stages.PRODUCTS, 7)
    block, outer, inner = schedule.sample_perfect_tile(rows, 3, _MOST_ROWS)
    factors = _kernel_factors(program, columns, outputs, channels)
    at = _results(program, lambda loop: schedule.split(loop, [block, None]))
    for name in (stages.PRODUCTS, stages.TILES):
        schedule.compute_at(program.block(name), at, preserve_unit_loops=True)
    _tiles(program)
    _pad(program, at)
    _products(program, (outer, inner), *factors)


def _by_stages(program: _Program) -> None:
    """Each stage for the whole image."""
    schedule = program.schedule
    _inline(program)
    _, _, _, rows, columns, outputs, channels = program.loops(stages.PRODUCTS, 7)
    outer, inner = schedule.sample_perfect_tile(rows, 2, _MOST_ROWS)
    factors = _kernel_factors(program, columns, outputs, channels)
    _results(program, None)
    _tiles(program)
    _pad(program, None)
    _products(program, (outer, inner), *factors)


def _inline(program: _Program) -> None:
    """Inline the output transformation and all that is fused, but for the last block."""
    names = program.names
    for name in names[names.index(stages.OUTPUTS) : -1]:
        program.schedule.compute_inline(program.block(name))
    if stages.PAD in names and names.index(stages.PAD) > 0:
        program.schedule.compute_inline(program.block(names[0]))  # into the larger padding


def _kernel_factors(
    program: _Program, columns: Any, outputs: Any, channels: Any
) -> tuple[Any, Any, Any]:
    """Factors of the columns, of the vectors of output channels, and of the input channels."""
    schedule = program.schedule
    vectors, lane = program.vectors(outputs)
    found = (
        schedule.sample_perfect_tile(columns, 2, _MOST_COLUMNS),
        schedule.sample_perfect_tile(vectors, 2, _MOST_VECTORS),
        schedule.sample_perfect_tile(channels, 2, _MOST_CHANNELS),
    )
    schedule.fuse(vectors, lane)  # the block is moved as a whole
    return found


def _results(program: _Program, split_rows: Callable[[Any], Any] | None) -> Any:
    """Order the loops of the last block by tiles; return its loop over blocks of rows."""
    schedule, last = program.schedule, program.block(program.names[-1])
    side = _outputs_per_tile(program)
    images, height, width, channels = schedule.get_loops(last)
    rows, row = schedule.split(height, [None, side])
    columns, column = schedule.split(width, [None, side])
    vectors, lane = program.vectors(channels)
    outer = []
    if split_rows is not None:
        block, rows = split_rows(rows)
        outer = [block]
    schedule.reorder(images, *outer, rows, columns, vectors, row, column, lane)
    schedule.vectorize(lane)
    schedule.unroll(row)
    schedule.unroll(column)
    schedule.compute_at(program.block(stages.SUMS), vectors, preserve_unit_loops=True)
    _straight(program, stages.SUMS)
    return outer[0] if outer else None


def _outputs_per_tile(program: _Program) -> int:
    block = program.schedule.get(program.block(stages.SUMS))
    return int(block.iter_vars[0].dom.extent)


def _straight(program: _Program, name: str) -> None:
    """Unroll the transformation of one tile and one vector of channels."""
    *unrolled, lane = program.loops(name, 6)
    for loop in unrolled:
        program.schedule.unroll(loop)
    program.schedule.vectorize(lane)


def _tiles(program: _Program) -> None:
    """Both steps of the input transformation at one tile and one vector of channels."""
    schedule = program.schedule
    i, j, images, rows, columns, channels = program.loops(stages.TILES, 6)
    vectors, lane = program.vectors(channels)
    schedule.reorder(images, rows, columns, vectors, i, j, lane)
    schedule.vectorize(lane)
    schedule.unroll(i)
    schedule.unroll(j)
    schedule.compute_at(program.block(stages.ROWS), vectors, preserve_unit_loops=True)
    _straight(program, stages.ROWS)


def _pad(program: _Program, at: Any | None) -> None:
    """Compute the padding at the blocks of rows, or for the whole image; without one, nothing."""
    names = program.names
    name = stages.PAD if stages.PAD in names else names[0]
    if name == stages.ROWS:
        return
    schedule = program.schedule
    if at is not None:
        schedule.compute_at(program.block(name), at, preserve_unit_loops=True)
    _, lane = program.vectors(program.loops(name, 1)[0])
    schedule.vectorize(lane)


def _products(program: _Program, rows: Any, columns: Any, vectors: Any, channels: Any) -> None:
    """One GEMM per position in the tile, with a kernel of rows x columns x vectors."""
    schedule = program.schedule
    i, j, images, row, column, output, channel = program.loops(stages.PRODUCTS, 7)
    row_outer, row = schedule.split(row, list(rows))
    column_outer, column = schedule.split(column, list(columns))
    vector, lane = program.vectors(output)
    vector_outer, vector = schedule.split(vector, list(vectors))
    channel_outer, channel = schedule.split(channel, list(channels))
    outer = (i, j, images, vector_outer, row_outer, column_outer, channel_outer)
    inner = (channel, row, column, vector)
    schedule.reorder(*outer, *inner, lane)
    schedule.vectorize(lane)
    for loop in inner:
        schedule.unroll(loop)
