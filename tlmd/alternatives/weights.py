"""How weights are packed, in numpy: what the weights of several kinds of programs share."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]


def packed(weights: NDArray[Any], shape: Shape) -> NDArray[Any]:
    """Panels ``[panels, K, columns]`` of weights ``[..., channels, N]``, of the same dtype.

    There are zeros after column `N`, after the last channel of a tap, and between the groups of a
    block (`groups`).
    """
    panels, depth, columns = shape
    groups = depth // math.prod(weights.shape[:-1])
    matrix = _block_diagonal(weights, groups, columns // groups)
    taps = math.prod(weights.shape[:-2])
    missing = depth // taps - matrix.shape[-2], panels * columns - matrix.shape[-1]
    matrix = matrix.reshape(taps, *matrix.shape[-2:])
    matrix = np.pad(matrix, ((0, 0), *((0, extent) for extent in missing)))
    return np.ascontiguousarray(matrix.reshape(depth, panels, columns).transpose(1, 0, 2))


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


def rounded(numbers: NDArray[Any]) -> NDArray[Any]:
    """The nearest bfloat16 numbers, ties to even."""
    return numbers.astype(ml_dtypes.bfloat16)


def pairs(lower: NDArray[Any], upper: NDArray[Any]) -> NDArray[np.uint32]:
    """Words of two bfloat16 numbers each, as `words.bfloat16` has them, of arrays of one shape."""
    first, second = (half.view(np.uint16).astype(np.uint32) for half in (lower, upper))
    return np.asarray(first | second << np.uint32(16))


def quads(numbers: NDArray[np.int8]) -> NDArray[np.uint32]:
    """Words ``[...]`` of four neighbours ``[..., 4]`` each, as `words.int8` has them."""
    return np.ascontiguousarray(numbers).view(np.uint32)[..., 0]
