"""The weights of packed programs, made from those of the direct program in numpy.

They are ``[panels, K, columns]``, made from ``[..., channels, N]``. There are zeros after column
`N`, after the last channel of a tap, and between the groups of a block (`groups`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlmd.alternatives.words import word_arrays


def numbers(weights: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The weights ``[panels, K, columns]``, of the same dtype."""
    panels, depth, columns = shape
    groups = depth // math.prod(weights.shape[:-1])
    matrix = _block_diagonal(weights, groups, columns // groups)
    taps = math.prod(weights.shape[:-2])
    missing = depth // taps - matrix.shape[-2], panels * columns - matrix.shape[-1]
    matrix = matrix.reshape(taps, *matrix.shape[-2:])
    matrix = np.pad(matrix, ((0, 0), *((0, extent) for extent in missing)))
    return np.ascontiguousarray(matrix.reshape(depth, panels, columns).transpose(1, 0, 2))


def pairs_of_halves(weights: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.uint32]:
    """Pairs ``[panels, K / 2, columns]`` of a channel and the one after half of the channels."""
    return _pairs(weights, shape, taps=math.prod(weights.shape[:-2]))


def pairs_of_neighbours(weights: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.uint32]:
    """Pairs ``[panels, K / 2, columns]`` of neighbouring channels."""
    return _pairs(weights, shape, taps=shape[1])


def quads_of_neighbours(weights: NDArray[np.int8], shape: tuple[int, ...]) -> NDArray[np.uint32]:
    """Words ``[panels, K / 4, columns]`` of four neighbouring channels."""
    panels, quads, columns = shape
    packed = numbers(weights, (panels, 4 * quads, columns)).reshape(panels, quads, 4, columns)
    return word_arrays.quads(packed.transpose(0, 1, 3, 2))


def _pairs(weights: NDArray[Any], shape: tuple[int, ...], taps: int) -> NDArray[np.uint32]:
    """Pairs of the two halves of each of the `taps`."""
    panels, pairs, columns = shape
    packed = word_arrays.rounded(numbers(weights, (panels, 2 * pairs, columns)))
    halves = packed.reshape(panels, taps, 2, -1, columns)
    return word_arrays.pairs(halves[:, :, 0], halves[:, :, 1]).reshape(shape)


def _block_diagonal(weights: NDArray[Any], groups: int, outputs: int) -> NDArray[Any]:
    """Weights ``[..., I, N]`` as ``[..., groups * I, N]``: zeros between the groups of a block.

    `outputs`: columns of a group.
    """
    if groups == 1:
        return weights
    *outer, inputs, columns = weights.shape
    blocks = np.zeros((*outer, groups, inputs, columns), weights.dtype)
    for column in range(columns):
        blocks[..., column // outputs % groups, :, column] = weights[..., column]
    return blocks.reshape(*outer, groups * inputs, columns)
