"""Sums of terms with constant coefficients, as the transformations of fast algorithms are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from tlmd.alternatives.contraction import DTYPE

Matrix = NDArray[np.float64]


def matrix(text: str) -> Matrix:
    """The matrix whose rows stand between semicolons, as in ``"1 0; 1/2 -1"``."""
    rows = [[float(Fraction(word)) for word in row.split()] for row in text.split(";")]
    return np.array(rows, np.float64)


def row_of(matrix: Matrix, row: Any, term: Callable[[Any], Any]) -> Any:
    """Row `row` of `matrix` times the terms. `row` becomes a constant when its loop is unrolled."""
    sums = [_sum(coefficients, term) for coefficients in matrix.tolist()]
    value = sums[-1]
    for index in reversed(range(len(sums) - 1)):
        value = tirx.Select(row == index, sums[index], value)
    return value


def _sum(coefficients: Sequence[float], term: Callable[[Any], Any]) -> Any:
    """The sum of the terms times their coefficients, without products by 1 and 0."""
    total = None
    for index, coefficient in enumerate(coefficients):
        if coefficient == 0:
            continue
        size = abs(coefficient)
        value = term(tirx.const(index, "int64"))
        value = value if size == 1 else value * tirx.const(size, DTYPE)
        if total is None:
            total = value if coefficient > 0 else tirx.const(0.0, DTYPE) - value
        else:
            total = total + value if coefficient > 0 else total - value
    return total
