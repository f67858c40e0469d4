"""The sketches of Winograd programs: how the stages of `winograd.py` are tiled and placed.

In the first sketch a block of rows of the image goes through all stages before the next block, so
that the tiles stay in the caches. In the second one each stage is done for the whole image, so that
the weights are read once and every stage has its own parallel loop. TVM's own rules cannot make
either: they refuse the first and do not unroll the transformations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tlmd.alternatives.contraction import shape_of
from tlmd.alternatives.scheduling import Sketch, StageSchedule
from tlmd.alternatives.winograd import winograd as stages
from tlmd.alternatives.winograd.winograd_tiles import MOST_COLUMNS, MOST_ROWS

_MOST_VECTORS, _MOST_CHANNELS = 4, 4  # of one kernel, which is unrolled


def sketches(program: StageSchedule) -> list[Sketch]:
    """Sketches of a program. Tiles one after the other are no rows."""
    return [by_rows, by_stages] if _tile_loops(program) > 1 else [by_stages]


def by_rows(program: StageSchedule) -> None:
    """Blocks of rows go through all stages; each stage is computed at the block's loop."""
    schedule = program.schedule
    _inline(program)
    rows, columns, outputs, channels = program.loops(stages.PRODUCTS, 4)
    block, outer, inner = schedule.sample_perfect_tile(rows, 3, MOST_ROWS)
    along = schedule.sample_perfect_tile(columns, 2, MOST_COLUMNS)
    factors = _kernel_factors(program, outputs, channels)
    at = _results(program, lambda loop: schedule.split(loop, [block, None]))
    for name in (stages.PRODUCTS, stages.TILES):
        schedule.compute_at(program.block(name), at, preserve_unit_loops=True)
    _tiles(program)
    _pad(program, at)
    _products(program, [(outer, inner), along], *factors)


def by_stages(program: StageSchedule) -> None:
    """Each stage for the whole image."""
    schedule = program.schedule
    _inline(program)
    *tiles, outputs, channels = program.loops(stages.PRODUCTS, _tile_loops(program) + 2)
    kernel = list(zip(tiles[-2:], _most_tiles(program), strict=True))
    sampled = [schedule.sample_perfect_tile(loop, 2, most) for loop, most in kernel]
    factors = _kernel_factors(program, outputs, channels)
    _results(program, None)
    _tiles(program)
    _pad(program, None)
    _products(program, sampled, *factors)


def _tile_loops(program: StageSchedule) -> int:
    """How many loops of the products go over tiles: planes, rows and columns, or all in one."""
    products = program.schedule.get(program.block(stages.PRODUCTS)).writes[0].source
    return len(shape_of(products)) - 3  # the position in a tile, and the channels


def _most_tiles(program: StageSchedule) -> list[int]:
    """The most tiles of a kernel, in each loop that a kernel has."""
    if _tile_loops(program) > 1:
        return [MOST_ROWS, MOST_COLUMNS]
    weights = program.schedule.get(program.block(stages.PRODUCTS)).reads[1].source
    return [program.kernels.most_rows(shape_of(weights)[-1] // program.lanes)]


def _inline(program: StageSchedule) -> None:
    """Inline the output transformation and all that is fused, but for the last block."""
    names = program.names
    program.inline_from(stages.OUTPUTS)
    if stages.PAD in names and names.index(stages.PAD) > 0:
        program.schedule.compute_inline(program.block(names[0]))  # into the larger padding


def _kernel_factors(program: StageSchedule, outputs: Any, channels: Any) -> tuple[Any, Any]:
    """Factors of the vectors of output channels, and of the input channels."""
    schedule = program.schedule
    vectors, lane = program.vectors(outputs)
    factors = (
        schedule.sample_perfect_tile(vectors, 2, _MOST_VECTORS),
        schedule.sample_perfect_tile(channels, 2, _MOST_CHANNELS),
    )
    schedule.fuse(vectors, lane)  # the block is moved as a whole
    return factors


def _results(program: StageSchedule, split_rows: Callable[[Any], Any] | None) -> Any:
    """Order the loops of the last block by tiles; return its loop over blocks of rows."""
    schedule, last = program.schedule, program.block(program.names[-1])
    side = int(schedule.get(program.block(stages.SUMS)).iter_vars[0].dom.extent)  # of a tile
    *images, height, width, channels = schedule.get_loops(last)
    plane = schedule.fuse(*images) if len(images) > 1 else images[0]
    rows, row = schedule.split(height, [None, side])
    columns, column = schedule.split(width, [None, side])
    vectors, lane = program.vectors(channels)
    outer = []
    if split_rows is not None:
        block, rows = split_rows(rows)
        outer = [block]
    schedule.reorder(plane, *outer, rows, columns, vectors, row, column, lane)
    schedule.vectorize(lane)
    schedule.unroll(row)
    schedule.unroll(column)
    schedule.compute_at(program.block(stages.SUMS), vectors, preserve_unit_loops=True)
    _straight(program, stages.SUMS)
    return outer[0] if outer else None


def _straight(program: StageSchedule, name: str) -> None:
    """Unroll the transformation of one tile and one vector of channels."""
    *unrolled, lane = program.loops(name, _tile_loops(program) + 3)
    program.kernel(unrolled, lane)


def _tiles(program: StageSchedule) -> None:
    """Both steps of the input transformation at one tile and one vector of channels."""
    schedule = program.schedule
    i, j, *tiles, channels = program.loops(stages.TILES, _tile_loops(program) + 3)
    vectors, lane = program.vectors(channels)
    schedule.reorder(*tiles, vectors, i, j, lane)
    schedule.vectorize(lane)
    schedule.unroll(i)
    schedule.unroll(j)
    schedule.compute_at(program.block(stages.ROWS), vectors, preserve_unit_loops=True)
    _straight(program, stages.ROWS)


def _pad(program: StageSchedule, at: Any | None) -> None:
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


def _products(program: StageSchedule, tiles: Sequence[Any], vectors: Any, channels: Any) -> None:
    """One GEMM per position in the tile, with a kernel of tiles x vectors.

    `tiles`: factors of the loops over tiles that a kernel has. `vectors`, `channels`: as well.
    """
    schedule = program.schedule
    i, j, *loops, output, channel = program.loops(stages.PRODUCTS, _tile_loops(program) + 4)
    images = loops[: -len(tiles)]
    parts = [
        schedule.split(loop, list(factors))
        for loop, factors in zip(loops[len(images) :], tiles, strict=True)
    ]
    outer, inner = zip(*parts, strict=True)
    vector, lane = program.vectors(output)
    vector_outer, vector = schedule.split(vector, list(vectors))
    channel_outer, channel = schedule.split(channel, list(channels))
    kernel = (channel, *inner, vector)
    schedule.reorder(i, j, *images, vector_outer, *outer, channel_outer, *kernel, lane)
    program.kernel(kernel, lane)
