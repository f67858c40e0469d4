"""Decompositions of functions that TVM lacks, or that it computes otherwise than PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from tlmd.models.pytorch.promotion import cast

aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `run_decompositions`."""
    return {
        aten.div.Tensor_mode: _div,
        aten.div.Scalar_mode: _div,
        aten.floor_divide.default: lambda x, y: _div(x, y, rounding_mode="floor"),
        aten.remainder.Tensor: _remainder,
        aten.remainder.Scalar: _remainder,
        aten.remainder.Scalar_Tensor: _remainder,
        aten.fmod.Tensor: _fmod,
        aten.fmod.Scalar: _fmod,
        aten.pow.Tensor_Tensor: _pow,
        aten.pow.Tensor_Scalar: _pow,
        aten.pow.Scalar: _pow,
        aten.elu.default: _elu,
        aten.log1p.default: _log1p,
        aten.expm1.default: _expm1,
        aten.exp2.default: lambda x: torch.exp(x * math.log(2)),
        aten.atan2.default: _atan2,
        aten.round.decimals: _round,
        aten.nan_to_num.default: _nan_to_num,
        aten.fmax.default: lambda x, y: _ignoring_nan(torch.maximum, x, y),
        aten.fmin.default: lambda x, y: _ignoring_nan(torch.minimum, x, y),
        aten.signbit.default: lambda x: x < 0,
        aten.mul.Tensor: _times_zero,
        aten.topk.default: _topk,
        aten.copysign.Tensor: _copysign,
        aten.hypot.default: lambda x, y: torch.sqrt(x * x + y * y),
        aten.erfc.default: lambda x: 1 - torch.erf(x),
        aten.linear.default: _linear,
        aten.matmul.default: _matmul,
        aten.addmv.default: _addmv,
        aten.addbmm.default: _addbmm,
        aten.masked_scatter.default: _masked_scatter,
    }


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if _keeps_weights(x, weight):
        return NotImplemented
    return aten.linear.default(_as_rows(x), weight, bias).reshape(*x.shape[:-1], len(weight))


def _matmul(x: Tensor, y: Tensor) -> Any:
    if _keeps_weights(x, y):
        return NotImplemented
    return aten.mm.default(_as_rows(x), y).reshape(*x.shape[:-1], y.shape[-1])


def _keeps_weights(x: Tensor, matrix: Tensor) -> bool:
    """PyTorch repeats a matrix for each index of `x` where its rows do not follow each other."""
    return bool(x.dim() < 3 or matrix.dim() != 2 or x.is_contiguous())


def _as_rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if sorted:
        return NotImplemented
    return aten.topk.default(x, k, dim, largest, True)  # TVM knows the sorted one only


def _promoted(kind: KIND, *values: Tensor | float) -> list[Tensor]:
    """The operands in the dtype that PyTorch computes in; tensors from numbers too."""
    dtype = elementwise_dtypes(*values, type_promotion_kind=kind)[1]
    return [
        cast(v, dtype) if isinstance(v, torch.Tensor) else torch.scalar_tensor(v, dtype=dtype)
        for v in values
    ]


def _times_zero(x: Tensor, y: Tensor | float) -> Any:
    """Zero times NaN or infinity is NaN; TVM takes it for 0."""
    if isinstance(y, torch.Tensor) or y != 0 or not x.is_floating_point():
        return NotImplemented
    zero, nan = (torch.scalar_tensor(number, dtype=x.dtype) for number in (0, math.nan))
    return torch.where(torch.isfinite(x), zero, nan)


def _div(x: Tensor | float, y: Tensor | float, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return torch.true_divide(x, y)
    ready = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dtype == y.dtype
    left, right = _promoted(KIND.DEFAULT, x, y)
    if not left.dtype.is_floating_point:
        if ready:
            return NotImplemented
        return aten.div.Tensor_mode(left, right, rounding_mode=rounding_mode)
    if rounding_mode == "trunc":
        return torch.trunc(left / right)
    rest = torch.fmod(left, right)
    quotient = (left - rest) / right
    down = (rest != 0) & ((right < 0) != (rest < 0))
    floor = torch.round(torch.where(down, quotient - 1, quotient))
    # Division by zero and infinities.
    return torch.where(floor.isfinite() & (right != 0), floor, torch.floor(left / right))


def _remainder(x: Tensor | float, y: Tensor | float) -> Tensor:
    rest = torch.fmod(*(left_right := _promoted(KIND.DEFAULT, x, y)))
    right = left_right[1]
    return torch.where((rest != 0) & ((right < 0) != (rest < 0)), rest + right, rest)


def _fmod(x: Tensor | float, y: Tensor | float) -> Any:
    half = (torch.float16, torch.bfloat16)
    if (
        isinstance(x, Tensor)
        and isinstance(y, Tensor)
        and x.dtype == y.dtype
        and x.dtype not in half
    ):
        return NotImplemented
    left, right = _promoted(KIND.DEFAULT, x, y)
    if left.dtype in half:
        return torch.fmod(left.float(), right.float()).to(left.dtype)
    return aten.fmod.Tensor(left, right)


def _pow(base: Tensor | float, exponent: Tensor | float) -> Any:
    dtype = elementwise_dtypes(base, exponent, type_promotion_kind=KIND.BOOL_TO_LONG)[1]
    tensors = [x for x in (base, exponent) if isinstance(x, torch.Tensor)]
    if not dtype.is_floating_point:
        if len(tensors) == 1 and isinstance(base, torch.Tensor) and exponent >= 0:
            return NotImplemented if base.dtype == dtype else torch.pow(base.to(dtype), exponent)
        return _integer_power(*_promoted(KIND.BOOL_TO_LONG, base, exponent))
    if all(x.dtype == dtype for x in tensors):
        return NotImplemented
    return torch.pow(cast(base, dtype), cast(exponent, dtype))


def _integer_power(base: Tensor, exponent: Tensor) -> Tensor:
    """A power by squaring. An exponent above 63 overflows, unless the base is 0, 1 or -1."""
    result, square = torch.ones_like(base * exponent), base
    for bit in range(6):
        result = torch.where((exponent >> bit) % 2 == 1, result * square, result)
        square = square * square
    none = (base == 0) & (exponent > 0) | (exponent < 0) & (base.abs() != 1)
    return torch.where(none, 0, result)


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    if alpha >= 0 and scale == 1 and input_scale == 1:
        return NotImplemented
    low = (torch.exp(x * input_scale) - 1) * (alpha * scale)
    return torch.where(x > 0, x * scale, low)


def _log1p(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    # Kahan's: exact where x is small.
    shifted = x + 1
    exact = torch.log(shifted) * (x / (shifted - 1))
    return torch.where((shifted == 1) | ~shifted.isfinite(), x, exact)


def _expm1(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    # Its series where exp(x) - 1 would lose digits.
    series = x * (1 + x * (0.5 + x * (1 / 6 + x / 24)))
    return torch.where(x.abs() < 0.03, series, torch.exp(x) - 1)


def _atan2(y: Tensor, x: Tensor) -> Tensor:
    y, x = _promoted(KIND.INT_TO_FLOAT, y, x)
    angle = torch.atan(y / x)
    left = torch.where(y < 0, angle - math.pi, angle + math.pi)
    upright = torch.sign(y) * (math.pi / 2)
    return torch.where(x > 0, angle, torch.where(x < 0, left, upright))


def _round(x: Tensor, *, decimals: int) -> Tensor:
    if not x.is_floating_point() or decimals == 0:
        return torch.round(x)
    scale = 10.0 ** abs(decimals)
    return torch.round(x * scale) / scale if decimals > 0 else torch.round(x / scale) * scale


def _nan_to_num(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    if not x.is_floating_point():
        return x.clone()
    limits = torch.finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    finite = torch.where(x == math.inf, high, torch.where(x == -math.inf, low, x))
    return torch.where(x.isnan(), 0.0 if nan is None else nan, finite).to(x.dtype)


def _ignoring_nan(function: Callable[..., Any], x: Tensor, y: Tensor) -> Any:
    x, y = _promoted(KIND.DEFAULT, x, y)
    if not x.dtype.is_floating_point:
        return function(x, y)
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, function(x, y)))


def _copysign(x: Tensor, y: Tensor) -> Tensor:
    x, y = _promoted(KIND.INT_TO_FLOAT, x, y)
    return torch.where(y < 0, -x.abs(), x.abs())


def _addmv(
    x: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    product = torch.mv(matrix, vector) * alpha
    return product if beta == 0 else product + x * beta


def _addbmm(x: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = torch.bmm(left, right).sum(0) * alpha
    return product if beta == 0 else product + x * beta


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Where the mask is true, the elements of `source` in their order. It has enough of them."""
    x, mask = torch.broadcast_tensors(x, mask)  # type: ignore[no-untyped-call]
    if not source.numel():
        return x.clone()
    order = torch.cumsum(mask.reshape(-1).to(torch.int64), 0) - 1
    places = torch.clamp(order, 0, source.numel() - 1)
    taken = aten.index_select.default(source.reshape(-1), 0, places).reshape(x.shape)
    return torch.where(mask, taken, x)
