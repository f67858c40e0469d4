"""The minimal filtering algorithms, and the weights of their programs in numpy.

The algorithms and their matrices are those of Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks" (CVPR 2016), section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlmd.alternatives.packed import packed_weights

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Filtering:
    """The matrices of F(m x m, 3 x 3); a tile of the input has ``(m + 2)**2`` elements.

    ``output = A^T [(G w G^T) * (B^T d B)] A`` for a 3 x 3 filter `w` and a tile `d`.
    """

    data: Matrix
    """B^T, ``[m + 2, m + 2]``."""

    weights: Matrix
    """G, ``[m + 2, 3]``."""

    output: Matrix
    """A^T, ``[m, m + 2]``."""

    @property
    def outputs(self) -> int:
        """m: outputs of a tile in each direction."""
        return len(self.output)

    @property
    def inputs(self) -> int:
        """m + 2: inputs of a tile in each direction."""
        return len(self.data)

    def transformed(self, weights: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """The weights of a program, computed in float64, of the dtype of `weights`.

        ``[3, 3, inputs, outputs]`` become ``[m + 2, m + 2, panels, inputs, columns]``, those of a
        grouped convolution ``[m + 2, m + 2, blocks, channels, columns]``, and those of a 3-D one,
        ``[planes, 3, 3, inputs, outputs]``, ``[m + 2, m + 2, panels, planes * inputs, columns]``.
        Tasks of earlier versions have no panels.
        """
        depth, columns = shape[-2:]
        panels, planes = math.prod(shape[2:-2]), math.prod(weights.shape[:-4])
        packed = packed_weights.numbers(weights, (panels, 9 * depth, columns))
        windows = packed.reshape(panels, planes, 3, 3, depth // planes, columns).astype(np.float64)
        g = self.weights
        tiles = np.einsum("ai,bj,pkijco->abpkco", g, g, windows, optimize=True)
        return np.ascontiguousarray(tiles.reshape(shape).astype(weights.dtype))


def _matrix(*rows: tuple[float, ...]) -> Matrix:
    return np.array(rows, np.float64)


FILTERINGS = {
    "winograd2": Filtering(
        _matrix((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        _matrix((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
        _matrix((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    "winograd4": Filtering(
        _matrix(
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        _matrix(
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        _matrix((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    ),
}
"""By the name of the alternative."""
