"""Kernels of matrix products: a tile of rows x vectors of the result that stays in registers.

For each number of the sum a kernel loads its vectors of weights and one number of each of its rows,
and adds their products to the tile. With too many rows or vectors for the registers, sums are
stored and loaded again in each turn; with too few, the core waits for loads and additions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_KERNEL_ROWS = (6, 8, 5)  # good kernels of 32 registers have so many rows
_DIVIDING_ROWS = range(5, 15)  # those that are good enough, too
_MOST_PADDED = 1.02  # rows in all over rows that are needed, for a choice of kernels
_PANEL_VECTORS = {4: 1.0, 3: 1.02, 2: 1.1, 1: 1.4}
"""Vectors of a panel -> time of a kernel for each of its vectors, relative, roughly measured."""
_FEW_REGISTERS = 16
_MOST_SUMS = 28
"""Vectors of the result that a kernel of 32 registers can have: some are left for the weights."""
_SMALL_KERNELS = {(4, 3): 1.0, (6, 2): 1.0, (5, 2): 1.02, (4, 2): 1.03, (8, 1): 1.22}
"""Rows and vectors of kernels of 16 registers -> time of a product, relative: benchmarks/LOG.md,
"Kernels for sixteen registers"."""
_SINGLE_HEIGHTS = range(6, 13)
"""Rows of kernels of one vector that are almost as good, where there are no others."""


@dataclass(frozen=True)
class VectorUnit:
    """What the vector instructions of a CPU work on."""

    lanes: int
    """Elements of float32 in a vector."""

    registers: int = 32

    @property
    def kernels(self) -> Kernels:
        """The good kernels for so many registers."""
        return SmallKernels(self.lanes) if self.registers <= _FEW_REGISTERS else Kernels(self.lanes)


@dataclass(frozen=True)
class Kernels:
    """Kernels of 32 registers, on panels of up to four vectors.

    A panel is a multiple of `lanes`, the elements of a vector. Where rows are padded, the rows of a
    good kernel divide the rows in all.
    """

    lanes: int

    def most_rows(self, vectors: int) -> int:
        """Rows of the largest kernel of a sketch that works on panels of so many vectors."""
        return 14

    def pad_both(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows in all, and columns of a panel, which may be more than divide the columns."""
        return padded_rows(rows), panel_vectors(-(-columns // self.lanes)) * self.lanes

    def pad_rows(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows in all, and columns of a panel, which divide the `columns`, whole vectors."""
        is_divided = any(rows % kernel == 0 for kernel in _DIVIDING_ROWS)
        return rows if is_divided else padded_rows(rows), self._dividing_panel(columns)

    def panel(self, columns: int, heights: Collection[int]) -> int | None:
        """Columns of a panel, which divide the `columns`, for a kernel of one of these `heights`.

        None where none of them is good.
        """
        is_good = any(height in _DIVIDING_ROWS for height in heights)
        return self._dividing_panel(columns) if is_good else None

    def narrow_panel(self, heights: Collection[int]) -> int | None:
        """Columns of a panel of one vector; None where no kernel has enough of these `heights`."""
        return None

    def dividing_rows(self, rows: int, vectors: int) -> int | None:
        """Rows of the largest good kernel that divides so many, for panels of so many vectors."""
        heights = [height for height in _DIVIDING_ROWS if height * vectors <= _MOST_SUMS]
        return max((height for height in heights if rows % height == 0), default=None)

    def _dividing_panel(self, columns: int) -> int:
        vectors = columns // self.lanes
        return next(width for width in _PANEL_VECTORS if vectors % width == 0) * self.lanes


class SmallKernels(Kernels):
    """Kernels of 16 registers: each has its own rows and vectors."""

    def most_rows(self, vectors: int) -> int:
        return 12 if vectors == 1 else 6

    def pad_both(self, rows: int, columns: int) -> tuple[int, int]:
        if rows < min(kernel for kernel, _ in _SMALL_KERNELS):
            return super().pad_both(rows, columns)
        return self._padded(rows, -(-columns // self.lanes), _SMALL_KERNELS)

    def pad_rows(self, rows: int, columns: int) -> tuple[int, int]:
        return self._padded(rows, columns // self.lanes, self._dividing(columns))

    def panel(self, columns: int, heights: Collection[int]) -> int | None:
        good = [kernel for kernel in self._dividing(columns) if kernel[0] in heights]
        return min(good, key=_SMALL_KERNELS.__getitem__)[1] * self.lanes if good else None

    def narrow_panel(self, heights: Collection[int]) -> int | None:
        return self.lanes if any(height in _SINGLE_HEIGHTS for height in heights) else None

    def dividing_rows(self, rows: int, vectors: int) -> int | None:
        heights = [height for height, width in _SMALL_KERNELS if width == vectors]
        return max((height for height in heights if rows % height == 0), default=None)

    def _dividing(self, columns: int) -> list[tuple[int, int]]:
        """The kernels whose vectors divide those of so many columns."""
        return [one for one in _SMALL_KERNELS if columns // self.lanes % one[1] == 0]

    def _padded(
        self, rows: int, vectors: int, kernels: Iterable[tuple[int, int]]
    ) -> tuple[int, int]:
        """The rows in all and the panel of the kernel that takes least with what is padded."""

        def time(kernel: tuple[int, int]) -> float:
            products = multiple(rows, kernel[0]) * multiple(vectors, kernel[1])
            return products * _SMALL_KERNELS[kernel]

        height, width = min(kernels, key=time)
        return multiple(rows, height), width * self.lanes


def padded_rows(rows: int) -> int:
    """The least number of rows, at least `rows`, that a good kernel of 32 registers divides."""
    if rows < min(_KERNEL_ROWS):
        return rows
    every = multiple(rows, math.lcm(*_KERNEL_ROWS[:2]))
    if every < _MOST_PADDED * rows:
        return every
    return min(multiple(rows, kernel) for kernel in _KERNEL_ROWS)


def panel_vectors(vectors: int) -> int:
    """How many vectors a panel has: as few more in all as possible, for an efficient kernel."""
    return min(_PANEL_VECTORS, key=lambda width: multiple(vectors, width) * _PANEL_VECTORS[width])


def multiple(number: int, factor: int) -> int:
    """The least multiple of `factor` that is not smaller than `number`."""
    return -(-number // factor) * factor
