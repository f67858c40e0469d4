"""Strassen's algorithm as matrices, and the weights of its programs in numpy.

V. Strassen, "Gaussian Elimination is not Optimal" (Numerische Mathematik 13, 1969).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Multiplication:
    """An algorithm for the product of two matrices in ``parts x parts`` parts each.

    ``output = C [(A data) * (B weights)]``, where data, weights and output are lists of parts, row
    by row, and ``*`` multiplies matrices one by one.
    """

    data: Matrix
    """A, ``[products, parts**2]``."""

    weights: Matrix
    """B, ``[products, parts**2]``."""

    output: Matrix
    """C, ``[parts**2, products]``."""

    @property
    def products(self) -> int:
        return len(self.data)

    @property
    def parts(self) -> int:
        """Parts of a matrix in each direction."""
        return math.isqrt(len(self.output))

    def summed(self, weights: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """The sums of parts of the weights, computed in float64, of the dtype of `weights`.

        ``[..., K, N]`` become ``[products, panels, K / parts, columns]``. A row of parts is
        ``K / parts`` neighbouring rows; of the columns, panels belong to the columns of parts in
        turn.
        """
        _, panels, depth, columns = shape
        numbers = weights.reshape(self.parts, depth, panels, self.parts, columns).astype(np.float64)
        listed = numbers.transpose(0, 3, 2, 1, 4).reshape(self.parts**2, panels, depth, columns)
        sums = np.einsum("sq,qpkc->spkc", self.weights, listed, optimize=True)
        return np.ascontiguousarray(sums.astype(weights.dtype))


def _matrix(*rows: tuple[float, ...]) -> Matrix:
    return np.array(rows, np.float64)


MULTIPLICATIONS = {
    "strassen2": Multiplication(
        _matrix(
            (1, 0, 0, 1),
            (0, 0, 1, 1),
            (1, 0, 0, 0),
            (0, 0, 0, 1),
            (1, 1, 0, 0),
            (-1, 0, 1, 0),
            (0, 1, 0, -1),
        ),
        _matrix(
            (1, 0, 0, 1),
            (1, 0, 0, 0),
            (0, 1, 0, -1),
            (-1, 0, 1, 0),
            (0, 0, 0, 1),
            (1, 1, 0, 0),
            (0, 0, 1, 1),
        ),
        _matrix(
            (1, 0, 0, 1, -1, 0, 1),
            (0, 0, 1, 0, 1, 0, 0),
            (0, 1, 0, 1, 0, 0, 0),
            (1, -1, 1, 0, 0, 1, 0),
        ),
    ),
}
"""By the name of the alternative. In 4 x 4 parts none was the fastest of its group:
benchmarks/LOG.md, "Strassen's algorithm"."""
