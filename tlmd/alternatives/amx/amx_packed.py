"""GEMMs and convolutions as one GEMM for the CPU's matrix unit (`amx`), of bfloat16 or bytes.

The data are made a matrix first: what a row of a convolution's result needs is one row of it. For
bfloat16 it is rounded to pairs, of the halves of the channels, as in `packed`; a float32 program
has pairs of two parts of each number. All outer dimensions of the output are one dimension of rows,
rounded up to whole tiles; the rows too many repeat the last one. Where few channels are not enough
for a row of a tile, several taps are (`amx_lines`). A convolution of stride 1 needs no such matrix
(`amx_grid`).

Where the channels of a tap do not fill whole rows of tiles, the last row overlaps the one before
it, and the weights of what it has twice are zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from tvm import te

from tlmd.alternatives.alternative import DirectProgram, Implementation
from tlmd.alternatives.amx import amx, amx_grid, amx_lines
from tlmd.alternatives.amx.amx_code import BF16, EDGE
from tlmd.alternatives.amx.amx_grid import Grid
from tlmd.alternatives.amx.amx_numbers import Numbers
from tlmd.alternatives.amx.tile_rows import TileRows, padded_rows
from tlmd.alternatives.contraction import Contraction, shape_of, with_constants
from tlmd.alternatives.expressions import axis, clamped, flattened, long, unflattened, uses
from tlmd.alternatives.kernel import multiple
from tlmd.alternatives.packed.packed import PLACED
from tlmd.alternatives.words.words import WORD

ROUNDED, MATRIX, PRODUCED = "amx_rounded", "amx_matrix", "amx_products"
_MOST_WORK = 1.0  # over that of the direct program
_OF_A_GRID = 0.65  # work over that of a convolution whose data are copied for each tap


def packed(direct: DirectProgram, kind: Numbers) -> Implementation | None:
    """The program for the matrix unit; None where the weights cannot be packed for it.

    The weights ``[..., N]`` become ``[panels, K, parts, columns]`` words, `columns` those of a
    kernel. In bfloat16 data and weights are rounded to one part or to two parts of each number.
    """
    contraction = with_constants(direct.module["main"], direct.constants, kind.given)
    rows = None if contraction is None else _rows(contraction, kind)
    if contraction is None or rows is None:
        return None
    of_a_column = math.prod(shape_of(contraction.weights.source)[:-1])
    grid = None if rows.is_run else amx_grid.find(contraction)
    work = kind.work * rows.elements * kind.of_an_element / of_a_column
    if work > _MOST_WORK:
        return None
    work *= 1 if grid is None else _OF_A_GRID
    made = contraction.replaced(direct.module, _stages(contraction, kind, rows, grid))
    return Implementation(made, direct.flops, direct.work * work)


def _rows(contraction: Contraction, kind: Numbers) -> TileRows | None:
    """The rows of the matrix; None where columns need other data, or these lie otherwise."""
    indices, rows = contraction.data.indices, kind.rows(contraction.weights.source)
    if any(uses(index, contraction.spatial[-1]) for index in indices):
        return None
    if rows is None or not indices[-1].same_as(contraction.reduction[-1]):
        return None
    return None if rows.is_run and not amx_lines.are_runs(contraction) else rows


def rows_of_tiles(rows: int, columns: int) -> int:
    """Tiles of rows of a kernel with so many tiles of columns; `rows`: numbers in all."""
    tiles = -(-rows // EDGE)
    return next(height for height in (4, 2, 1) if height * columns <= 4 and tiles % height == 0)


def _columns_of_tiles(rows: int, columns: int) -> int:
    """Tiles of columns of a kernel, which are a panel, for so many rows and columns of numbers."""
    tiles = -(-columns // EDGE)
    return min(tiles, 2 if -(-rows // EDGE) % 2 == 0 else 4)


def _stages(contraction: Contraction, kind: Numbers, tile_rows: TileRows, grid: Grid | None) -> Any:
    """The function ``(data, weights, output)`` of the GEMM, and of writing its result."""
    *outer, columns = shape_of(contraction.output)
    rows = padded_rows(math.prod(outer)) if grid is None else grid.rows
    panel = EDGE * _columns_of_tiles(rows, columns)
    width = multiple(columns, panel)
    data = te.placeholder(long(shape_of(contraction.data.source)), kind.given, name="data")
    depth = tile_rows.elements // amx.BYTES[kind.numbers]
    weights = te.placeholder(long((width // panel, depth, kind.parts, panel)), WORD, name="weights")
    if grid is not None:
        matrix = amx_grid.matrix(grid, kind, tile_rows, data, MATRIX)
        products = amx_grid.products(kind, grid, matrix, weights, width)
    else:
        make = partial(amx_lines.matrix, name=MATRIX) if tile_rows.is_run else _matrix
        matrix = make(contraction, kind, tile_rows, data)
        products = _products(kind, matrix, weights, width)

    def result(*at: Any) -> Any:
        place = grid.place(at[:-1]) if grid else (flattened(at[:-1], outer),)
        return products[(*place, at[-1])]

    placed = te.compute(long((*outer, columns)), result, name=PLACED)
    return te.create_prim_func([data, weights, placed])


def _products(kind: Numbers, matrix: Any, weights: Any, width: int) -> Any:
    rows = int(matrix.shape[0])
    _, depth, _, panel = (int(extent) for extent in weights.shape)
    k = axis(depth, "k")

    def value(row: Any, column: Any) -> Any:
        chosen, place = column // panel, column % panel
        terms = kind.products(matrix, row, k.var, lambda b: weights[chosen, k.var, b, place])
        return te.sum(terms, axis=[k])

    return te.compute(long((rows, width)), value, name=PRODUCED)


def _matrix(contraction: Contraction, kind: Numbers, tile_rows: TileRows, data: Any) -> Any:
    """The data as ``[rows, parts, elements]``; what several taps read is rounded only once."""
    outer = shape_of(contraction.output)[:-1]
    taps, width = shape_of(contraction.weights.source)[:-2], tile_rows.apart
    rows = math.prod(outer)
    padded = padded_rows(rows)

    def made(before: Sequence[Any], part: Any, place: Any) -> Any:
        return kind.element(lambda channel: data[(*before, channel)], tile_rows, part, place)

    is_rounded = kind.numbers == BF16 and math.prod(taps) > 1
    rounded = te.compute(
        long((*shape_of(contraction.data.source)[:-1], kind.parts, width)),
        lambda *at: made(at[:-2], *at[-2:]),
        name=ROUNDED,
    )

    def element(row: Any, part: Any, index: Any) -> Any:
        at = unflattened(clamped(row, rows, padded), outer)
        *tap, place = unflattened(index, [*taps, width])
        before = contraction.data_at(at, tap)[:-1]
        return rounded[(*before, part, place)] if is_rounded else made(before, part, place)

    shape = padded, kind.parts, math.prod(taps) * width
    return te.compute(long(shape), element, name=MATRIX)
