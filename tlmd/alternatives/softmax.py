"""Parts of a softmax as tensor expressions."""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx

LOG2_E = math.log2(math.e)
_LEAST = -127.0  # the power that becomes 0
_MANTISSA = 23  # bits
# 2 ** x for -0.5 <= x <= 0.5: the polynomial with the least largest relative error, 9.1e-8, of
# those that are 1 at 0, so that masked keys become 0.
_POLYNOMIAL = (
    *(1.0, 0.6931469775951153, 0.24022242077095093),
    *(0.05550733744478486, 0.0096715131829464, 0.0013264728768462599),
)


def power_of_two(exponent: Any) -> Any:
    """``2 ** exponent`` for a float32 `exponent` of at most 126, with a relative error below 2e-7.

    Minus infinity gives 0, NaN stays NaN; below -126 the absolute error is below 1e-38. TVM's
    `fast_exp` takes half as many instructions more: it knows large exponents, and has the base e.
    """
    # The constant is first: a comparison with NaN is false, and takes the second.
    clipped = tirx.max(_float(_LEAST), exponent)
    whole = tirx.nearbyint(clipped)
    part = clipped - whole
    found = _float(_POLYNOMIAL[-1])
    for factor in reversed(_POLYNOMIAL[:-1]):
        found = found * part + _float(factor)
    bits = tirx.reinterpret("int32", found) + (whole.astype("int32") << _MANTISSA)
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
