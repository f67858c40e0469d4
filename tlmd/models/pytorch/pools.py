"""Decompositions of pools.

The windows are read at places that depend on shapes only; the normalisation folds these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

Sizes = int | Sequence[int]
"""One number for all dimensions of a window, or one for each."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `run_decompositions`."""
    return {
        aten.adaptive_max_pool2d.default: _adaptive_max_pool,
        aten.adaptive_max_pool3d.default: _adaptive_max_pool,
        aten.avg_pool2d.default: _avg_pool(2, F.avg_pool2d),
        aten.avg_pool3d.default: _avg_pool(3, F.avg_pool3d),
        aten.max_pool2d_with_indices.default: _with_strides(aten.max_pool2d_with_indices.default),
        aten.max_pool3d_with_indices.default: _with_strides(aten.max_pool3d_with_indices.default),
    }


def indexed_pools() -> dict[Any, Callable[..., Any]]:
    """The table for models that use the indices of pools, which TVM does not compute."""
    return {
        aten.max_pool2d_with_indices.default: _max_pool,
        aten.max_pool3d_with_indices.default: _max_pool,
    }


def _each(value: Sizes, count: int, default: int) -> list[int]:
    """An argument that may be one number, a list, or empty."""
    values = list(value) if isinstance(value, Sequence) else [value]
    return (values or [default]) * (1 if len(values) == count else count)


def _max_pool(
    x: Tensor,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil: bool = False,
) -> tuple[Tensor, Tensor]:
    rank = 2 if x.dim() < 5 and not (x.dim() == 4 and len(_list(kernel)) == 3) else 3
    kernels = _each(kernel, rank, 1)
    strides = _each(stride, rank, 1) if _list(stride) else kernels
    paddings, dilations = _each(padding, rank, 0), _each(dilation, rank, 1)
    sizes = zip(x.shape[-rank:], kernels, strides, paddings, dilations, strict=True)
    windows = [_strided(*each, ceil=ceil) for each in sizes]
    return _largest(x, windows)


def _list(value: Sizes) -> list[int]:
    return list(value) if isinstance(value, Sequence) else [value]


def _strided(
    extent: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool
) -> Tensor:
    """Places ``[windows, kernel]``. A place in the padding is moved to one in the same window."""
    reach = dilation * (kernel - 1) + 1
    count = _windows(extent, reach, stride, padding, ceil)
    starts = torch.arange(count).unsqueeze(1) * stride - padding
    places = starts + torch.arange(kernel) * dilation
    first = torch.where(starts < 0, starts % dilation, starts)
    last = starts + (extent - 1 - starts).div(dilation, rounding_mode="floor") * dilation
    return torch.minimum(torch.maximum(places, first), last)


def _windows(extent: int, reach: int, stride: int, padding: int, ceil: bool) -> int:
    """The number of windows along a dimension."""
    free = extent + 2 * padding - reach
    count = (-(-free // stride) if ceil else free // stride) + 1
    if ceil and (count - 1) * stride >= extent + padding:
        return count - 1  # the last window must not start in the padding
    return count


def _adaptive(extent: int, count: int) -> Tensor:
    """Places ``[windows, size of the largest window]``."""
    kernel = max(-(-(i + 1) * extent // count) - i * extent // count for i in range(count))
    numbers = torch.arange(count)
    starts = (numbers * extent).div(count, rounding_mode="floor").unsqueeze(1)
    ends = ((numbers + 1) * extent + count - 1).div(count, rounding_mode="floor").unsqueeze(1)
    return torch.minimum(starts + torch.arange(kernel), ends - 1)


def _largest(x: Tensor, windows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The largest element of each window, and its place in the flat image.

    `x` is ``[..., *image]``. There is one tensor of places ``[windows, kernel]`` per dimension of
    the image. Both results are ``[..., *windows]``.
    """
    rank, lead = len(windows), list(x.shape[: -len(windows)])
    image = list(x.shape[-rank:])
    for axis, places in enumerate(windows):
        # Dimensions (..., windows, kernel) take the place of one.
        dim = len(lead) + 2 * axis
        shape = [*x.shape[:dim], *places.shape, *x.shape[dim + 1 :]]
        x = torch.index_select(x, dim, places.reshape(-1)).reshape(shape)
    counts = [places.shape[0] for places in windows]
    start = len(lead)
    order = [*range(start, x.dim(), 2), *range(start + 1, x.dim(), 2)]
    x = x.permute([*range(start), *order]).reshape([*lead, *counts, -1])
    values, inside = x.amax(-1), x.argmax(-1)
    flat: Any = 0
    for axis, places in enumerate(windows):
        step = math.prod(places.shape[1] for places in windows[axis + 1 :])
        place = (inside // step) % places.shape[1]
        base = torch.arange(counts[axis]) * places.shape[1]
        base = base.reshape([-1 if other == axis else 1 for other in range(rank)])
        taken = torch.index_select(places.reshape(-1), 0, (base + place).reshape(-1))
        flat = flat * image[axis] + taken.reshape(place.shape)
    return values, flat


def _adaptive_max_pool(x: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    windows = [_adaptive(e, n) for e, n in zip(x.shape[-len(size) :], size, strict=True)]
    return _largest(x, windows)


def _with_strides(op: Callable[..., Any]) -> Callable[..., Any]:
    """Without strides, windows do not overlap."""

    def decomposition(x: Tensor, kernel: Sizes, stride: Sizes = (), *args: Any) -> Any:
        return NotImplemented if _list(stride) else op(x, kernel, kernel, *args)

    return decomposition


def _avg_pool(rank: int, pool: Callable[..., Any]) -> Callable[..., Any]:
    """An average with a divisor of its own is one of full windows, scaled."""

    def decomposition(
        x: Tensor,
        kernel: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        ceil: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ) -> Any:
        if divisor is None:
            return NotImplemented
        kernels, paddings = _each(kernel, rank, 1), _each(padding, rank, 0)
        strides = _each(stride, rank, 1) if _list(stride) else kernels
        widths: list[int] = []
        sizes = zip(x.shape[-rank:], kernels, strides, paddings, strict=True)
        for extent, kernel_, stride_, padding_ in list(sizes)[::-1]:
            count = _windows(extent, kernel_, stride_, padding_, ceil)
            more = max(0, (count - 1) * stride_ + kernel_ - extent - 2 * padding_)
            widths += [padding_, padding_ + more]
        whole = not x.is_floating_point()
        padded = F.pad(x.to(torch.float64) if whole else x, widths)
        average = pool(padded, kernels, strides) * (math.prod(kernels) / divisor)
        # Integers are cut off, after what the multiplication rounded.
        return (average + average.sign() * 1e-6).to(x.dtype) if whole else average

    return decomposition
