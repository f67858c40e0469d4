"""The tiles of a Winograd program: by planes, rows and columns, or one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tlmd.alternatives.expressions import clamped, flattened, unflattened
from tlmd.alternatives.groups import Blocks
from tlmd.alternatives.kernel import VectorUnit

MOST_ROWS, MOST_COLUMNS = 2, 14
"""Rows and columns of tiles of a kernel, which is unrolled: larger ones take LLVM seconds."""
_LEAST_PRODUCTS = 64
"""Products for each element of the tiles: benchmarks/LOG.md, "Winograd's tiles one after the other:
not with few products"."""


@dataclass(frozen=True)
class Planes:
    """The planes of all images one after the other. An image of a 2-D convolution is one plane."""

    images: int

    inputs: int
    """Planes of an image of the data, with its padding."""

    outputs: int
    """Planes of an image of the output."""

    @property
    def more(self) -> int:
        """Planes of an image that the data have and the output has not."""
        return self.inputs - self.outputs

    def of_data(self, plane: Any, tap: Any) -> Any:
        """The plane of the data that a plane of the output reads, `tap` planes after its own."""
        if not self.more:
            return plane
        image, at = self._image(plane, self.outputs)
        return image * self.inputs + at + tap

    def data_indices(self, plane: Any, dimensions: int) -> list[Any]:
        """The first indices of the data, which has so many dimensions."""
        return [plane] if dimensions == 4 else list(self._image(plane, self.inputs))

    def of_output(self, image: Any, at: Sequence[Any]) -> Any:
        """The plane of the output with these first indices."""
        return image * self.outputs + at[0] if at else image

    def _image(self, plane: Any, planes: int) -> tuple[Any, Any]:
        if self.images == 1:
            return tirx.const(0, "int64"), plane
        return plane // planes, plane % planes


@dataclass(frozen=True)
class Tiles:
    """The tiles of all planes: the dimensions of the stages that have such."""

    planes: Planes
    rows: int
    columns: int
    padded: int = 0
    """Tiles of the output one after the other, with those too many; 0: by planes, rows, columns."""

    def names(self) -> list[str]:
        """Names of the dimensions that a stage has for the tiles."""
        return ["t"] if self.padded else ["n", "h", "w"]

    def of_data(self) -> list[int]:
        """The extents of these dimensions in the stages of the data."""
        if self.padded:
            return [self.padded + self.planes.more * self.rows * self.columns]
        return self._grid(self.planes.inputs)

    def of_output(self) -> list[int]:
        """The extents of these dimensions in the stages of the output."""
        return [self.padded] if self.padded else self._grid(self.planes.outputs)

    def read(self, index: Sequence[Any], tap: Any) -> list[Any]:
        """Where the data of a tile are of which a product is summed, `tap` planes after its own."""
        first, *others = index
        if self.padded:
            return [first + tap * self.rows * self.columns]
        return [self.planes.of_data(first, tap), *others]

    def index(self, plane: Any, row: Any, column: Any) -> list[Any]:
        """Where a tile of the output is in a stage."""
        at = [plane, row, column]
        return [flattened(at, self._grid(self.planes.outputs))] if self.padded else at

    def located(self, index: Sequence[Any]) -> list[Any]:
        """The plane, row and column of a tile of the data; those too many repeat the last one."""
        if not self.padded:
            return list(index)
        grid = self._grid(self.planes.inputs)
        return unflattened(clamped(index[0], math.prod(grid), *self.of_data()), grid)

    def _grid(self, planes: int) -> list[int]:
        """Planes, rows and columns of all tiles, with so many planes of an image."""
        return [self.planes.images * planes, self.rows, self.columns]


def arranged(
    planes: Planes, rows: int, columns: int, blocks: Blocks, unit: VectorUnit
) -> tuple[Tiles, int]:
    """The tiles, and the columns of a panel of weights.

    They are one after the other where no good kernel has so many rows and columns of tiles as
    divide those of a plane: of 7 x 7 tiles a kernel has 7, with two vectors more than 16 registers
    have room for. Then each stage is done for the whole image, so that with few products for each
    element of a tile writing and reading the tiles takes longer than the kernel saves.
    """
    heights = {
        height * width
        for height in _divisors(rows, MOST_ROWS)
        for width in _divisors(columns, MOST_COLUMNS)
    }
    kernels = unit.kernels
    panel = kernels.panel(blocks.columns, heights)
    count = planes.images * planes.outputs * rows * columns
    padded, best = kernels.pad_rows(count, blocks.columns)
    inputs, outputs = blocks.count * blocks.channels, blocks.count * blocks.columns
    products = (planes.more + 1) * blocks.channels * outputs
    can_be_along = count not in heights and (planes.images == 1 or not planes.more)
    is_worth_it = products >= _LEAST_PRODUCTS * (inputs + outputs)
    if panel or not can_be_along or not is_worth_it:
        padded, best = 0, panel or kernels.narrow_panel(heights) or best
    return Tiles(planes, rows, columns, padded), blocks.columns if blocks.is_grouped else best


def _divisors(extent: int, most: int) -> list[int]:
    return [one for one in range(1, most + 1) if extent % one == 0]
