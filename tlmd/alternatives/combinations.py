"""Sums of terms with constant coefficients, as the transformations of fast algorithms are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from tlmd.alternatives.contraction import DTYPE


def row_of(matrix: NDArray[np.float64], row: Any, term: Callable[[Any], Any]) -> Any:
    """Row `row` of `matrix` times the terms. `row` becomes a constant when its loop is unrolled."""
    sums = [_sum(coefficients, term) for coefficients in matrix.tolist()]
    found = sums[-1]
    for index in reversed(range(len(sums) - 1)):
        found = tirx.Select(row == index, sums[index], found)
    return found


def _sum(coefficients: Sequence[float], term: Callable[[Any], Any]) -> Any:
    """The sum of the terms times their coefficients, without products by 1 and 0."""
    found = None
    for index, coefficient in enumerate(coefficients):
        if coefficient == 0:
            continue
        size = abs(coefficient)
        value = term(tirx.const(index, "int64"))
        value = value if size == 1 else value * tirx.const(size, DTYPE)
        if found is None:
            found = value if coefficient > 0 else tirx.const(0.0, DTYPE) - value
        else:
            found = found + value if coefficient > 0 else found - value
    return found
