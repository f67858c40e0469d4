"""Parts of a softmax as tensor expressions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

LOG2_E = math.log2(math.e)
_LEAST = -127.0  # the power that becomes 0
_MANTISSA = 23  # bits
# 2 ** x for -0.5 <= x <= 0.5: the polynomials with the least largest relative error, 9.1e-8 and
# 1.1e-4, of those that are 1 at 0, so that masked keys become 0.
_POLYNOMIAL = (
    *(1.0, 0.6931469775951153, 0.24022242077095093),
    *(0.05550733744478486, 0.0096715131829464, 0.0013264728768462599),
)
_SHORT_POLYNOMIAL = (1.0, 0.693282898, 0.242210975, 0.0550090578)
# Truncation to bfloat16 takes half of its last bit on average, which is this share of a number.
_TRUNCATED = 2**-8 / 1.5


def power_of_two(exponent: Any) -> Any:
    """``2 ** exponent`` for a float32 `exponent` of at most 126, with a relative error below 2e-7.

    Minus infinity gives 0, NaN stays NaN; below -126 the absolute error is below 1e-38. TVM's
    `fast_exp` takes half as many instructions more: it knows large exponents, and has the base e.
    """
    return _power(exponent, _POLYNOMIAL)


def power_of_two_to_truncate(exponent: Any) -> Any:
    """The same, a little larger, for whom truncates it to bfloat16: that replaces the rounding.

    Then the relative error is below 0.0054, and that of rounding is up to 0.0039. 0 gives exactly
    1, minus infinity 0, NaN stays NaN.
    """
    return _power(exponent, [factor * (1 + _TRUNCATED) for factor in _SHORT_POLYNOMIAL])


def _power(exponent: Any, polynomial: Sequence[float]) -> Any:
    # The constant is first: a comparison with NaN is false, and takes the second.
    clipped = tirx.max(_float(_LEAST), exponent)
    # To the nearest whole number, as `nearbyint`, whose loops TVM would not make vectors of: LLVM
    # then makes them of several iterations, and shuffles.
    whole = tirx.round(clipped)
    part = clipped - whole
    *factors, power = map(_float, polynomial)
    for factor in reversed(factors):
        power = power * part + factor
    bits = tirx.reinterpret("int32", power) + (whole.astype("int32") << _MANTISSA)
    return tirx.reinterpret("float32", bits)


def _float(value: float) -> Any:
    return tirx.const(value, "float32")


def limits(keys: int, padded: int, name: str) -> Any:
    """The largest exponent of each of `padded` keys, ``[padded]``: 0, or minus infinity for those
    that are too many. A `Select` in the loop instead would make LLVM read by masks and gather,
    which takes longer than the power.
    """
    zero, least = _float(0), _float(-math.inf)
    shape = (tirx.const(padded, "int64"),)
    return te.compute(shape, lambda j: tirx.Select(j < keys, zero, least), name=name)


maximum = te.comm_reducer(
    lambda one, other: tirx.max(one, other), lambda dtype: tirx.const(-math.inf, dtype), "maximum"
)
"""TVM's own begins with the least finite number."""
