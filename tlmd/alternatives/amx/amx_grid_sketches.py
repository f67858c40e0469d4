"""The sketches of convolutions for the CPU's matrix unit whose data are read where they are."""

from __future__ import annotations

import math
from typing import Any

from tvm import sym

from tlmd.alternatives.amx import amx_grid
from tlmd.alternatives.amx import amx_packed as stages
from tlmd.alternatives.amx import amx_sketches as shared
from tlmd.alternatives.amx.amx import BYTES, Kernel
from tlmd.alternatives.amx.amx_code import EDGE
from tlmd.alternatives.contraction import shape_of, written_lanes
from tlmd.alternatives.expressions import REDUCTION
from tlmd.alternatives.packed import packed
from tlmd.alternatives.scheduling import StageSchedule

_MOST_STEPS, _MOST_PANELS = 72, 64


def _schedule(program: StageSchedule, makes_block: bool) -> None:
    schedule = program.schedule
    passes = shared.inline_before_matrix(program)
    products = program.block(amx_grid.PRODUCED)
    kernel = _kernel(program, products)
    block, rows, columns, *taps, words = schedule.get_loops(products)
    tile, row = schedule.split(rows, [None, kernel.rows * EDGE])
    panels, column = schedule.split(columns, [None, kernel.columns * EDGE])
    depth, word = schedule.split(words, [1, None])
    outside = len(taps) - len(kernel.window)
    sums = *taps[:outside], depth
    inner = *sums, tile, row, column, *taps[outside:], word
    outermost = _joined(program, kernel, (block, panels), inner, is_chunked=not makes_block)
    if makes_block:
        schedule.compute_at(program.block(stages.MATRIX), outermost, preserve_unit_loops=True)
    shared.begin(program, kernel, outermost)
    shared.call(program, kernel, products, sums[0], row)
    shared.make_matrix(program, kernel, passes)


sketches = shared.two_sketches(_schedule)


def _joined(
    program: StageSchedule,
    kernel: Kernel,
    loops: tuple[Any, Any],
    inner: tuple[Any, ...],
    is_chunked: bool,
) -> Any:
    """Make the products and what is done with the result in the same loops; returns the outermost.

    `loops`: over blocks and panels, `inner`: all others of the products. `is_chunked`: some panels
    of weights are used for all blocks before the next ones. What is too many in the last panel is
    not written, so the result of a block is written when all of its panels are there.
    """
    schedule, (block, panels) = program.schedule, loops
    products = program.block(amx_grid.PRODUCED)
    last = program.block(program.inline_from(packed.PLACED))
    *pixels, x, channels = schedule.get_loops(last)
    of_block, y = schedule.split(schedule.fuse(*pixels), [program.extents(products)[0], None])
    columns, width = program.extents(last)[-1], kernel.columns * EDGE
    factors = [1, None]
    if is_chunked and columns % width == 0:
        factors = list(schedule.sample_perfect_tile(panels, 2, _MOST_PANELS))
    chunk, panel = schedule.split(panels, factors)
    schedule.reorder(chunk, block, panel, *inner)
    if columns % width == 0:
        of_chunk, of_panel, channels = schedule.split(channels, [*factors, width])
        schedule.reorder(of_chunk, of_block, of_panel, y, x, channels)
        schedule.merge(panel, of_panel)
    else:
        _, of_block = schedule.split(of_block, [1, None])
        schedule.merge(block, of_block)
    _, lane = schedule.split(channels, [None, written_lanes(columns, program.lanes)])
    schedule.vectorize(lane)
    return schedule.fuse(*schedule.get_loops(products)[:2])


def _kernel(program: StageSchedule, products: Any) -> Kernel:
    """The kernel of a program, for as many taps as its sums of some steps have."""
    block = program.schedule.get(products)
    data, weights = (read.source for read in block.reads[-2:])
    _, parts, elements = shape_of(data)
    _, rows, _ = shape_of(block.writes[0].source)
    tiles = shape_of(weights)[-1] // EDGE
    numbers = shared.numbers_of(data)
    steps, window = elements // BYTES[numbers] // EDGE, _window(block)
    while window[1:] and steps * math.prod(count for count, _ in window) > _MOST_STEPS:
        window = window[1:]
    return Kernel(numbers, stages.rows_of_tiles(rows, tiles), tiles, steps, parts, window)


def _window(block: Any) -> tuple[tuple[int, int], ...]:
    """Taps, and rows of the data from one to the next."""
    taps = [one for one in block.iter_vars if int(one.iter_type) == REDUCTION][:-1]
    first = block.reads[-2].region[0].min
    *pitches, _ = sym.detect_linear_equation(first, [one.var for one in taps])
    window = zip(taps, pitches, strict=True)
    return tuple((int(one.dom.extent), int(pitch)) for one, pitch in window)
