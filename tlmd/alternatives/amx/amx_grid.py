"""Convolutions of stride 1 for the CPU's matrix unit: data that are read where they are.

A pixel of the padded image is one row of a matrix, and the pixels lie one after the other. What a
tap of the filter needs for some neighbouring pixels are then neighbouring rows, so the kernel reads
them there; nothing is copied once for each tap. Between two rows of the image it computes a few
pixels too many, which are not written.

The rows of the result are in blocks of whole rows of the image, rounded up to whole tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te

from tlmd.alternatives.amx import amx
from tlmd.alternatives.amx.amx_code import EDGE
from tlmd.alternatives.amx.amx_numbers import Numbers
from tlmd.alternatives.amx.tile_rows import TileRows
from tlmd.alternatives.contraction import Contraction, shape_of
from tlmd.alternatives.expressions import axis, clamped, flattened, long, same, unflattened
from tlmd.alternatives.kernel import multiple

PRODUCED = "amx_grid_products"
_MOST_ROWS = 512  # of a block, where a row of the image has not more


@dataclass(frozen=True)
class Grid:
    """The pixels of a convolution's data and of its result."""

    image: tuple[int, ...]
    """Extents of the padded data, but for the channels."""

    result: tuple[int, ...]
    """Extents of the result, but for the channels."""

    taps: tuple[int, ...]
    """Taps of the filter, one for each dimension of the image."""

    height: int
    """Rows of the image in a block."""

    @property
    def window(self) -> tuple[tuple[int, int], ...]:
        """Taps, and rows of the matrix from one to the next, of dimensions with several taps."""
        pitches = [math.prod(self.image[place + 1 :]) for place in range(len(self.image))]
        window = zip(self.taps, pitches, strict=True)
        return tuple((count, pitch) for count, pitch in window if count > 1)

    @property
    def blocks(self) -> int:
        """Number of blocks of rows of the image."""
        return math.prod(self.result[:-1]) // self.height

    @property
    def rows(self) -> int:
        """Rows of the matrix in a block, whole tiles."""
        return multiple(_rows(self.image, self.result, self.height), EDGE)

    def start(self, block: Any) -> Any:
        """The first row of the matrix of a block."""
        *outer, place = _unflattened(block, [*self.result[:-2], self.result[-2] // self.height])
        return flattened([*outer, place * self.height, 0], self.image)

    def place(self, at: Sequence[Any]) -> tuple[Any, Any]:
        """The block of a pixel of the result, and its row there."""
        *outer, y, x = at
        blocks = [*self.result[:-2], self.result[-2] // self.height]
        row = y % self.height * self.image[-1] + x
        return flattened([*outer, y // self.height], blocks), row


def find(contraction: Contraction) -> Grid | None:
    """The grid of a convolution of stride 1 with several taps; None for anything else."""
    *image, _ = shape_of(contraction.data.source)
    *result, _ = shape_of(contraction.output)
    left = dict(enumerate(contraction.reduction[:-1]))
    taps = []
    for index, pixel, inputs, outputs in zip(
        contraction.data.indices[:-1], contraction.spatial[:-1], image, result, strict=True
    ):
        extent = inputs - outputs + 1
        tap = next((place for place, one in left.items() if same([index], [pixel + one])), None)
        if tap is not None and tap == min(left):
            del left[tap]
        elif not same([index], [pixel]):
            return None
        taps.append(extent)
    if left or len(result) < 3 or math.prod(taps) == 1:
        return None
    height = min(_heights(image, result), key=lambda height: _cost(image, result, height))
    return Grid(tuple(image), tuple(result), tuple(taps), height)


def matrix(grid: Grid, kind: Numbers, tile_rows: TileRows, data: Any, name: str) -> Any:
    """The pixels as ``[rows, parts, elements]``; the rows too many repeat the last one."""
    rows = math.prod(grid.image)
    first = [*(extent - 1 for extent in grid.result[:-2]), grid.result[-2] - grid.height, 0]
    padded = max(rows, flattened(first, grid.image) + grid.rows + amx.reach(grid.window))

    def element(row: Any, part: Any, place: Any) -> Any:
        at = _unflattened(clamped(row, rows, padded), grid.image)
        return kind.element(lambda channel: data[(*at, channel)], tile_rows, part, place)

    shape = padded, kind.parts, tile_rows.apart
    return te.compute(long(shape), element, name=name)


def products(kind: Numbers, grid: Grid, data: Any, weights: Any, columns: int) -> Any:
    """The sums as ``[blocks, rows, columns]``, of a matrix and packed weights."""
    taps = [axis(count, "tap") for count, _ in grid.window]
    elements = int(data.shape[-1])
    panel = int(weights.shape[-1])
    depth = elements // amx.BYTES[kind.numbers]
    k = axis(depth, "k")
    tap = flattened([one.var for one in taps], [count for count, _ in grid.window])

    def value(block: Any, row: Any, column: Any) -> Any:
        first = grid.start(block) + row
        for one, (_, pitch) in zip(taps, grid.window, strict=True):
            first = first + one.var * pitch
        chosen, place = column // panel, column % panel
        word = tap * depth + k.var
        terms = kind.products(data, first, k.var, lambda b: weights[chosen, word, b, place])
        return te.sum(terms, axis=[*taps, k])

    return te.compute(long((grid.blocks, grid.rows, columns)), value, name=PRODUCED)


def _heights(image: Sequence[int], result: Sequence[int]) -> list[int]:
    """Rows of the image that a block may have."""
    whole = [height for height in range(1, result[-2] + 1) if result[-2] % height == 0]
    return [one for one in whole if _rows(image, result, one) <= _MOST_ROWS] or [1]


def _cost(image: Sequence[int], result: Sequence[int], height: int) -> tuple[int, int]:
    tiles = -(-_rows(image, result, height) // EDGE)
    return result[-2] // height * tiles, -height


def _rows(image: Sequence[int], result: Sequence[int], height: int) -> int:
    """Rows of the matrix from the first pixel of a block of the result to the last one."""
    return (height - 1) * image[-1] + result[-1]


def _unflattened(index: Any, extents: Sequence[int]) -> list[Any]:
    """Indices as of `unflattened`, with numbers for what is always 0."""
    ones = next(place for place, extent in enumerate([*extents, 0]) if extent != 1)
    return [*([0] * ones), *unflattened(index, extents[ones:])]
