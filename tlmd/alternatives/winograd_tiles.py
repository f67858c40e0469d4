"""The tiles of a Winograd program: by planes, rows and columns, or one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tlmd.alternatives.contraction import flattened, unflattened
from tlmd.alternatives.groups import Blocks
from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.packed import clamped

MOST_ROWS, MOST_COLUMNS = 2, 14
"""Of the tiles of one kernel, which is unrolled: larger ones take LLVM seconds."""


@dataclass(frozen=True)
class Planes:
    """The planes of all images one after the other. An image of a 2-D convolution is one plane."""

    images: int

    inputs: int
    """Planes of an image of the data, with its padding."""

    outputs: int
    """Planes of an image of the output."""

    def of_data(self, plane: Any, tap: Any) -> Any:
        """The plane of the data that a plane of the output reads, `tap` planes after its own."""
        if self.inputs == self.outputs:
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
    """Tiles one after the other, with those too many; 0: by planes, rows and columns."""

    def names(self) -> list[str]:
        """Of the dimensions that a stage has for the tiles."""
        return ["t"] if self.padded else ["n", "h", "w"]

    def extents(self, planes: int) -> list[int]:
        """Of these dimensions, with so many planes of an image."""
        return (
            [self.padded] if self.padded else [self.planes.images * planes, self.rows, self.columns]
        )

    def index(self, plane: Any, row: Any, column: Any) -> list[Any]:
        """Where a tile is in a stage."""
        at = [plane, row, column]
        return [flattened(at, self._grid())] if self.padded else at

    def located(self, index: Sequence[Any]) -> list[Any]:
        """The plane, row and column of a tile; those too many repeat the last one."""
        if not self.padded:
            return list(index)
        extents = self._grid()
        return unflattened(clamped(index[0], math.prod(extents), self.padded), extents)

    def _grid(self) -> list[int]:
        return [self.planes.images, self.rows, self.columns]


def arranged(
    planes: Planes, rows: int, columns: int, blocks: Blocks, unit: VectorUnit
) -> tuple[Tiles, int]:
    """The tiles, and the columns of a panel of weights.

    They are one after the other where no good kernel has so many rows and columns of tiles as
    divide those of a plane: of 7 x 7 tiles a kernel has 7, more than 16 registers have room for.
    """
    heights = {
        height * width
        for height in _divisors(rows, MOST_ROWS)
        for width in _divisors(columns, MOST_COLUMNS)
    }
    panel = unit.panel(blocks.columns, heights)
    count = planes.images * rows * columns
    padded, best = unit.divided(count, blocks.columns)
    is_along = panel is None and planes.inputs == planes.outputs == 1 and count not in heights
    tiles = Tiles(planes, rows, columns, padded if is_along else 0)
    return tiles, blocks.columns if blocks.is_grouped else panel or best


def _divisors(extent: int, most: int) -> list[int]:
    return [one for one in range(1, most + 1) if extent % one == 0]
