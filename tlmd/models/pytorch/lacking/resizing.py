"""Decompositions of resizing by factors that TVM's importer takes for quotients of extents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `run_decompositions`."""
    return {
        aten._upsample_bilinear2d_aa.default: _smooth_resize(_triangle),
        aten._upsample_bicubic2d_aa.default: _smooth_resize(_cubic),
        aten.upsample_nearest2d.vec: _nearest,
        aten.upsample_bilinear2d.vec: _linear,
    }


def _smooth_resize(filter: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """Resizing with a filter as wide as a step in the source, as two matrix products."""

    def decomposition(
        x: Tensor,
        size: Sequence[int],
        align_corners: bool,
        scale_h: float | None = None,
        scale_w: float | None = None,
    ) -> Tensor:
        rows, columns = (
            _weights(filter, extent, count, align_corners, scale)
            for extent, count, scale in zip(x.shape[-2:], size, (scale_h, scale_w), strict=True)
        )
        wide = x.float() @ columns.t()
        return (rows @ wide).to(x.dtype)

    return decomposition


def _weights(
    filter: Callable[[Tensor], Tensor],
    extent: int,
    count: int,
    align_corners: bool,
    scale: float | None,
) -> Tensor:
    """Weights ``[count, extent]``."""
    if align_corners:
        step = (extent - 1) / (count - 1) if count > 1 else 0.0
    else:
        step = 1 / scale if scale else extent / count
    width = max(step, 1.0)
    centres = (torch.arange(count, dtype=torch.float64).unsqueeze(1) + 0.5) * step
    places = torch.arange(extent, dtype=torch.float64) + 0.5
    weights = filter((places - centres).abs() / width)
    return (weights / weights.sum(1, keepdim=True)).float()


def _triangle(x: Tensor) -> Tensor:
    return (1 - x).clamp(min=0)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _nearest(x: Tensor, size: Sequence[int] | None, scales: Sequence[float] | None) -> Any:
    """TVM takes the nearest centre, which is PyTorch's choice only for whole factors."""
    extents = x.shape[-2:]
    if size is None:
        size = [math.floor(e * s) for e, s in zip(extents, scales or (), strict=True)]
    if all(n % e == 0 for n, e in zip(size, extents, strict=True)):
        return NotImplemented
    for dim, (extent, count) in enumerate(zip(extents, size, strict=True), x.dim() - 2):
        step = 1 / scales[dim - x.dim() + 2] if scales else extent / count
        places = torch.floor(torch.arange(count, dtype=torch.float32) * step)
        x = torch.index_select(x, dim, places.to(torch.int64).clamp(max=extent - 1))
    return x


def _linear(
    x: Tensor,
    size: Sequence[int] | None,
    align_corners: bool,
    scales: Sequence[float] | None,
) -> Any:
    """TVM computes with the quotient of the extents, PyTorch with the factor that is given.

    TVM divides by zero for one element with `align_corners`.
    """
    extents = x.shape[-2:]
    if size is None:
        size = [math.floor(e * s) for e, s in zip(extents, scales or (), strict=True)]
    exact = scales is None or all(e * s == n for e, s, n in zip(extents, scales, size, strict=True))
    right = 1 not in size if align_corners else exact
    if right and x.is_floating_point():
        return NotImplemented
    given = None if scales is None else list(scales)
    decomposition = decomposition_table[aten.upsample_bilinear2d.vec]
    return decomposition(x, None if given else list(size), align_corners, given)
