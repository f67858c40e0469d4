"""Decompositions of reductions and orders that TVM lacks or computes otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `run_decompositions`."""
    return {
        aten.amax.default: _reduced_over_all(aten.amax.default),
        aten.amin.default: _reduced_over_all(aten.amin.default),
        aten.any.default: lambda x: aten.any.dims(x, list(range(x.dim())), False),
        aten.any.dim: lambda x, dim, keepdim=False: aten.any.dims(x, [dim], keepdim),
        aten.any.dims: _any,
        aten.max.default: lambda x: aten.amax.default(x, list(range(x.dim())), False),
        aten.min.default: lambda x: aten.amin.default(x, list(range(x.dim())), False),
        aten.max.dim: lambda x, dim, keepdim=False: _extreme("max", x, dim, keepdim),
        aten.min.dim: lambda x, dim, keepdim=False: _extreme("min", x, dim, keepdim),
        aten.argmax.default: lambda x, *args: _arg(aten.argmax.default, x, *args),
        aten.argmin.default: lambda x, *args: _arg(aten.argmin.default, x, *args),
        aten.median.default: lambda x: _median(x.reshape(-1), 0)[0],
        aten.median.dim: lambda x, dim, keepdim=False: _median(x, dim, keepdim),
        aten.kthvalue.default: _kth_value,
        aten.var.correction: _variance,
        aten.var_mean.correction: _variance_and_mean,
        aten.sort.default: _sort,
        aten.sort.stable: _sort,
        aten.cummax.default: lambda x, dim: _running(torch.gt, x, dim),
        aten.cummin.default: lambda x, dim: _running(torch.lt, x, dim),
        aten.histc.default: _histogram,
        aten._softmax.default: lambda x, dim, _half: _along(aten._softmax.default, x, dim),
        aten._log_softmax.default: lambda x, dim, _half: _along(aten._log_softmax.default, x, dim),
    }


def _reduced_over_all(op: Callable[..., Any]) -> Callable[..., Any]:
    """Name the dimensions. Booleans are reduced by ``any``, which TVM computes in integers."""

    def decomposition(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        dims = [d % max(x.dim(), 1) for d in dim] or list(range(x.dim()))
        if x.dim() == 0:
            return x.clone()
        if x.dtype == torch.bool:
            reduced = op(x.to(torch.int8), dims, keepdim)
            return reduced.to(torch.bool)
        return NotImplemented if list(dim) == dims else op(x, dims, keepdim)

    return decomposition


def _any(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    dims = list(range(x.dim())) if dim is None else list(dim)
    flags = x if x.dtype == torch.bool else x != 0
    if not dims or x.dim() == 0:
        return flags.clone()
    if any(x.shape[d] == 0 for d in dims):
        return torch.any(torch.zeros_like(flags, dtype=torch.int64).sum(dims, keepdim) != 0, 0)
    return aten.amax.default(flags.to(torch.int8), dims, keepdim).to(torch.bool)


def _extreme(name: str, x: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values = getattr(torch, f"a{name}")(x, [dim], keepdim)
    return values, getattr(torch, f"arg{name}")(x, dim, keepdim)


def _arg(op: Callable[..., Any], x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return torch.zeros_like(x, dtype=torch.int64)
    if dim is None:
        place = op(x.reshape(-1), 0)
        return place.reshape([1] * x.dim()) if keepdim else place
    if x.dtype in (torch.bool, torch.uint8):
        return op(x.to(torch.int32), dim, keepdim)
    return NotImplemented


def _median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _kth_value(x, (x.shape[dim] + 1) // 2 if x.dim() else 1, dim, keepdim)


def _kth_value(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, places = torch.sort(x, dim)
    kth = values.narrow(dim, k - 1, 1), places.narrow(dim, k - 1, 1)
    return kth if keepdim else (kth[0].squeeze(dim), kth[1].squeeze(dim))


def _variance(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Any:
    dims = list(dim) if dim else list(range(x.dim()))
    count = math.prod(x.shape[d] for d in dims)
    left = max(count - (1 if correction is None else correction), 0)
    if left > 0 and dim and x.dtype not in (torch.float16, torch.bfloat16):
        return NotImplemented
    wide = x.to(torch.float32) if x.dtype != torch.float64 else x
    squares = (wide - wide.mean(dims, keepdim=True)) ** 2
    total = squares.sum(dims, keepdim=keepdim)
    return (total / left if left > 0 else total / 0.0).to(x.dtype)


def _variance_and_mean(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    dims = list(dim) if dim else list(range(x.dim()))
    variance = torch.var(x, dims, correction=correction, keepdim=keepdim)
    return variance, torch.mean(x, dims, keepdim=keepdim)


def _running(better: Callable[..., Any], x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Running extremes and their places, by doubling the distance looked back."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    extent = x.shape[dim]
    shape = [extent if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    places = torch.arange(extent, device=x.device).reshape(shape).expand(x.shape)
    values, step = (x.to(torch.int8) if x.dtype == torch.bool else x), 1
    while step < extent:
        now, before = values.narrow(dim, step, extent - step), values.narrow(dim, 0, extent - step)
        places_now = places.narrow(dim, step, extent - step)
        places_before = places.narrow(dim, 0, extent - step)
        # The latest place wins among equals, and NaN wins always.
        earlier = better(before, now) & ~now.isnan() | before.isnan() & ~now.isnan()
        values = torch.cat([values.narrow(dim, 0, step), torch.where(earlier, before, now)], dim)
        chosen = torch.where(earlier, places_before, places_now)
        places = torch.cat([places.narrow(dim, 0, step), chosen], dim)
        step *= 2
    return values.to(x.dtype), places


def _histogram(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    if min == max:
        return NotImplemented  # the range is that of the data
    wide = x.reshape(-1, 1)
    wide = wide if wide.is_floating_point() else wide.to(torch.float32)
    place = torch.floor((wide - min) * (bins / (max - min)))
    place = torch.where(wide == max, bins - 1, place)
    inside = (wide >= min) & (wide <= max)
    hits = (place == torch.arange(bins, device=x.device)) & inside
    return hits.sum(0).to(x.dtype)


def _along(op: Callable[..., Any], x: Tensor, dim: int) -> Any:
    if x.dim() == 0:
        return op(x.reshape(1), 0, False).reshape(())
    return NotImplemented


def _sort(x: Tensor, *args: Any, **kwargs: Any) -> Any:
    if x.dtype != torch.bool:
        return NotImplemented
    values, places = torch.sort(x.to(torch.int32), *args, **kwargs)
    return values.to(torch.bool), places
