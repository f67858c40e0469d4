"""The alternatives by Winograd's minimal filtering, for tiles of 2 x 2 and of 4 x 4 outputs.

The algorithms and their matrices are those of Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks" (CVPR 2016), section 4.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlmd.alternatives import weights as arrays
from tlmd.alternatives.alternative import Alternative
from tlmd.alternatives.combinations import matrix
from tlmd.alternatives.weights import Shape
from tlmd.alternatives.winograd.winograd import PRODUCTS, Filtering, winograd
from tlmd.alternatives.winograd.winograd_sketches import sketches

FILTERINGS = {
    "winograd2": Filtering(
        matrix("1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1"),
        matrix("1 0 0; 1/2 1/2 1/2; 1/2 -1/2 1/2; 0 0 1"),
        matrix("1 1 1 0; 0 1 -1 -1"),
    ),
    "winograd4": Filtering(
        matrix(
            "4 0 -5 0 1 0; 0 -4 -4 1 1 0; 0 4 -4 -1 1 0;0 -2 -1 2 1 0; 0 2 -1 -2 1 0; 0 4 0 -5 0 1"
        ),
        matrix("1/4 0 0; -1/6 -1/6 -1/6; -1/6 1/6 -1/6; 1/24 1/12 1/6; 1/24 -1/12 1/6; 0 0 1"),
        matrix("1 1 1 1 1 0; 0 1 -1 2 -2 0; 0 1 1 4 4 0; 0 1 -1 8 -8 1"),
    ),
}
"""Name of the alternative -> its matrices."""


def transformed(by: Filtering, weights: NDArray[Any], shape: Shape) -> NDArray[Any]:
    """The weights of a program, computed in float64, of the dtype of `weights`.

    ``[3, 3, inputs, outputs]`` become ``[m + 2, m + 2, panels, inputs, columns]``, those of a
    grouped convolution ``[m + 2, m + 2, blocks, channels, columns]``, and those of a 3-D one,
    ``[planes, 3, 3, inputs, outputs]``, ``[m + 2, m + 2, panels, planes * inputs, columns]``.
    Tasks of earlier versions have no panels.
    """
    depth, columns = shape[-2:]
    panels, planes = math.prod(shape[2:-2]), math.prod(weights.shape[:-4])
    packed = arrays.packed(weights, (panels, 9 * depth, columns))
    windows = packed.reshape(panels, planes, 3, 3, depth // planes, columns).astype(np.float64)
    tiles = np.einsum("ai,bj,pkijco->abpkco", by.weights, by.weights, windows, optimize=True)
    return np.ascontiguousarray(tiles.reshape(shape).astype(weights.dtype))


BY_TILES = tuple(
    Alternative(
        name, partial(winograd, by), partial(transformed, by), {PRODUCTS: sketches}, exact=False
    )
    for name, by in FILTERINGS.items()
)
