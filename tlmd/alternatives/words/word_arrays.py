"""Words of 32 bits in numpy, as `bfloat16` and `int8` have them in programs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray


def rounded(numbers: NDArray[Any]) -> NDArray[Any]:
    """The nearest bfloat16 numbers, ties to even."""
    return numbers.astype(ml_dtypes.bfloat16)


def pairs(lower: NDArray[Any], upper: NDArray[Any]) -> NDArray[np.uint32]:
    """Pairs of bfloat16 numbers of two arrays of one shape, which is that of the result."""
    halves = (numbers.view(np.uint16).astype(np.uint32) for numbers in (lower, upper))
    first, second = halves
    return np.asarray(first | second << np.uint32(16))


def quads(numbers: NDArray[np.int8]) -> NDArray[np.uint32]:
    """Four neighbours in the last dimension, ``[..., 4]``, as words ``[...]``."""
    return np.ascontiguousarray(numbers).view(np.uint32)[..., 0]
