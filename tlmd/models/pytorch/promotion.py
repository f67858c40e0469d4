"""Decompositions that write out what PyTorch does to dtypes by itself.

After them, all tensors that meet in an operator have one dtype, functions get floats, sums of
integers are int64, and booleans only meet logical operators. A decomposition that returns
``NotImplemented`` leaves the operator as it is.

The dtypes are PyTorch's own (`elementwise_dtypes`). Its whole decompositions (`torch._refs`) are
not used: they give operators of `prims`, for which TVM's importer has no converter. Nor is the pass
of `torch.onnx` that inserts casts, which is private and leaves booleans and NaN as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes, get_computation_dtype

aten = torch.ops.aten
Table = dict[Any, Callable[..., Any]]

_FLOAT_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "expm1"),
    *("log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt"),
    *("tan", "tanh"),
)
_BOOL_ARITHMETIC = {
    aten.add.Tensor: torch.logical_or,
    aten.mul.Tensor: torch.logical_and,
    aten.maximum.default: torch.logical_or,
    aten.minimum.default: torch.logical_and,
    aten.bitwise_and.Tensor: torch.logical_and,
    aten.bitwise_or.Tensor: torch.logical_or,
    aten.bitwise_xor.Tensor: torch.logical_xor,
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def decompositions() -> Table:
    """The table for `run_decompositions`."""
    table: Table = {}
    for name in ("add", "sub", "mul", "bitwise_and", "bitwise_or", "bitwise_xor"):
        packet = getattr(aten, name)
        table[packet.Tensor] = _arithmetic(packet.Tensor, KIND.DEFAULT)
        table[packet.Scalar] = _arithmetic(packet.Tensor, KIND.DEFAULT, always=True)
    for op in (aten.maximum.default, aten.minimum.default):
        table[op] = _arithmetic(op, KIND.DEFAULT)
    table[aten.div.Tensor] = _arithmetic(aten.div.Tensor, KIND.INT_TO_FLOAT)
    table[aten.div.Scalar] = _arithmetic(aten.div.Tensor, KIND.INT_TO_FLOAT, always=True)
    table[aten.atan2.default] = _arithmetic(aten.atan2.default, KIND.INT_TO_FLOAT)
    for name in _COMPARISONS:
        packet = getattr(aten, name)
        for overload in (packet.Tensor, packet.Scalar):
            table[overload] = _comparison(overload, getattr(torch, name))
    for name in _FLOAT_FUNCTIONS:
        table[getattr(aten, name).default] = _float_function(getattr(aten, name).default)
    for name in ("ceil", "floor", "round", "trunc", "nan_to_num"):
        table[getattr(aten, name).default] = _only_for_floats(torch.clone)
    for name in ("abs", "sign", "relu"):
        table[getattr(aten, name).default] = _not_for_flags
    table |= {
        aten.isnan.default: _only_for_floats(_none),
        aten.isinf.default: _only_for_floats(_none),
        aten.isfinite.default: _only_for_floats(torch.logical_not, _none),
        aten.bitwise_not.default: _bitwise_not,
        aten.where.self: _where,
        aten.cat.default: _cat,
        aten.masked_fill.Scalar: _masked_fill,
        aten.masked_fill.Tensor: _masked_fill,
        aten.clamp.default: _clamp,
        aten.clamp.Tensor: _clamp,
        aten.clamp_min.default: lambda x, low: _clamp(x, low),
        aten.clamp_min.Tensor: lambda x, low: _clamp(x, low),
        aten.clamp_max.default: lambda x, high: _clamp(x, None, high),
        aten.clamp_max.Tensor: lambda x, high: _clamp(x, None, high),
    }
    for op in (aten.sum.dim_IntList, aten.prod.dim_int, aten.cumsum.default, aten.cumprod.default):
        table[op] = _accumulation(op)
    table[aten.sum.default] = _sum_of_all
    table[aten.prod.default] = _prod_of_all
    table[aten.mean.dim] = _mean
    table[aten.mean.default] = lambda x, dtype=None: _mean(x, None, False, dtype=dtype)
    return table


def cast(value: Any, dtype: torch.dtype) -> Any:
    """`value` as a tensor of `dtype`; numbers stay numbers."""
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype != dtype else value


def _arithmetic(op: Callable[..., Any], kind: KIND, always: bool = False) -> Callable[..., Any]:
    """Cast the operands to the dtype of the result, and write out ``alpha``."""

    def decomposition(left: Tensor | float, right: Tensor | float, *, alpha: float = 1) -> Any:
        dtype = elementwise_dtypes(left, right, type_promotion_kind=kind)[1]
        if dtype == torch.bool and op in _BOOL_ARITHMETIC:
            return _BOOL_ARITHMETIC[op](_flags(left, right), _flags(right, left))
        done = alpha == 1 and not always
        if done and all(x.dtype == dtype for x in (left, right) if isinstance(x, Tensor)):
            return NotImplemented
        left, right = cast(left, dtype), cast(right, dtype)
        if not dtype.is_floating_point:
            # A number such as True, which TVM would give another dtype.
            left, right = (x if isinstance(x, Tensor) else int(x) for x in (left, right))
        if alpha != 1:
            right = right * alpha
        return op(left, right)

    return decomposition


def _flags(value: Tensor | float, like: Any) -> Tensor:
    """`value` as a tensor of booleans; `like` is a tensor where `value` is a number."""
    return (
        value if isinstance(value, Tensor) else torch.full_like(like, bool(value), dtype=torch.bool)
    )


def _comparison(op: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def decomposition(left: Tensor, right: Tensor | float) -> Any:
        dtype = torch.result_type(left, right)
        if left is right and dtype.is_floating_point and function in (torch.eq, torch.ne):
            # TVM takes a value for equal to itself, but NaN is not.
            return left.isnan() if function is torch.ne else left.isnan().logical_not()
        if dtype == torch.bool:
            left, right = left.to(torch.int8), cast(right, torch.int8)
            return function(left, right if isinstance(right, Tensor) else int(right))
        if all(x.dtype == dtype for x in (left, right) if isinstance(x, Tensor)):
            return NotImplemented
        return function(cast(left, dtype), cast(right, dtype))

    return decomposition


def _float_function(op: Callable[..., Any]) -> Callable[..., Any]:
    def decomposition(x: Tensor) -> Any:
        return NotImplemented if x.is_floating_point() else op(x.to(torch.get_default_dtype()))

    return decomposition


def _only_for_floats(*otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Integers take the functions `otherwise` instead, the last one first."""

    def decomposition(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.is_floating_point():
            return NotImplemented
        for function in reversed(otherwise):
            x = function(x)
        return x

    return decomposition


def _none(x: Tensor) -> Tensor:
    return torch.zeros_like(x, dtype=torch.bool)


def _not_for_flags(x: Tensor) -> Any:
    return x.clone() if x.dtype == torch.bool else NotImplemented


def _bitwise_not(x: Tensor) -> Any:
    return x.logical_not() if x.dtype == torch.bool else NotImplemented


def _where(condition: Tensor, left: Tensor, right: Tensor) -> Any:
    dtype = elementwise_dtypes(left, right, type_promotion_kind=KIND.NO_OPMATH)[1]
    if condition.dtype == torch.bool and left.dtype == dtype and right.dtype == dtype:
        return NotImplemented
    return torch.where(condition.to(torch.bool), cast(left, dtype), cast(right, dtype))


def _masked_fill(x: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    if not isinstance(value, Tensor):
        value = torch.scalar_tensor(value, dtype=x.dtype, device=x.device)
    return torch.where(mask, value.to(x.dtype), x)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    from functools import reduce

    # Empty ones add nothing; PyTorch allows empty vectors whatever the rank of the others is.
    kept = [x for x in tensors if x.numel()] or list(tensors)
    dtype = reduce(torch.promote_types, (x.dtype for x in tensors))
    if len(kept) == 1:
        return kept[0].to(dtype).clone()
    if len(kept) == len(tensors) and all(x.dtype == dtype for x in tensors):
        return NotImplemented
    return torch.cat([cast(x, dtype) for x in kept], dim)


def _clamp(x: Tensor, low: Tensor | float | None = None, high: Tensor | float | None = None) -> Any:
    bounds = [bound for bound in (low, high) if bound is not None]
    dtype = elementwise_dtypes(x, *bounds, type_promotion_kind=KIND.DEFAULT)[1]
    if (
        dtype.is_floating_point
        and x.dtype == dtype
        and not any(isinstance(bound, Tensor) for bound in bounds)
    ):
        # TVM has `clip` for this one.
        low, high = (math.inf if b is None else b for b in (low, high))
        low = -math.inf if low == math.inf else low
        return aten.hardtanh.default(x, low, high)
    x = cast(x, dtype)
    if low is not None:
        x = torch.maximum(x, _bound(low, dtype))
    return x if high is None else torch.minimum(x, _bound(high, dtype))


def _bound(bound: Tensor | float, dtype: torch.dtype) -> Tensor:
    return (
        cast(bound, dtype) if isinstance(bound, Tensor) else torch.scalar_tensor(bound, dtype=dtype)
    )


def _accumulation(op: Callable[..., Any]) -> Callable[..., Any]:
    """A sum or product of integers is an int64; `dtype` is the one to add in.

    PyTorch adds all integers in 64 bits without that argument, so narrow ones are cast after it.
    """

    def decomposition(x: Tensor, *args: Any, dtype: torch.dtype | None = None) -> Any:
        wanted = dtype or (x.dtype if x.is_floating_point() else torch.int64)
        if dtype is None and x.dtype == wanted:
            return NotImplemented
        if wanted.is_floating_point or wanted == torch.int64:
            return op(x.to(wanted), *args)
        return op(x.to(wanted).to(torch.int64), *args).to(wanted)

    return decomposition


def _sum_of_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return aten.sum.dim_IntList(x, list(range(x.dim())), False, dtype=dtype)


def _prod_of_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return aten.prod.dim_int(x.reshape(-1), 0, False, dtype=dtype)


def _mean(
    x: Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    dims = list(range(x.dim())) if dim is None or len(dim) == 0 else list(dim)
    wanted = dtype or x.dtype
    if x.dim() == 0:
        return x.to(wanted).clone()
    if dim is None or len(dim) == 0 or dtype is not None:
        return aten.mean.dim(x.to(wanted), dims, keepdim)
    return NotImplemented


def exact(x: Tensor) -> Tensor:
    """`x` in the dtype in which PyTorch computes it, for example float32 for float16."""
    return x.to(get_computation_dtype(x.dtype))
