"""Decompositions of products that TVM lacks: grouped, bilinear, distances, transposed volumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `run_decompositions`."""
    return {
        aten._grouped_mm.default: grouped_product,
        aten._trilinear.default: _trilinear,
        aten._cdist_forward.default: _distances,
        aten.convolution.default: _transposed_convolution,
    }


def grouped_product(
    x: Tensor,
    weights: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Rows of `x` ``[rows, k]`` times the matrix of their group, in `weights` ``[groups, k, n]``.

    Group i ends before row ``offs[i]``.
    """
    if offs is None and x.dim() == 3 and weights.dim() == 3:
        return torch.bmm(x, weights)
    if offs is None or x.dim() != 2 or weights.dim() != 3 or bias is not None:
        return NotImplemented
    rows, groups = x.shape[0], weights.shape[0]
    group = (torch.arange(rows).unsqueeze(1) >= offs).sum(1).clamp(max=groups - 1)
    if rows <= groups:
        return torch.bmm(x.unsqueeze(1), weights.index_select(0, group)).squeeze(1)
    # All groups for all rows: more arithmetic, but the weights are read once.
    products = torch.bmm(x.unsqueeze(0).expand(groups, *x.shape), weights)
    places = group * rows + torch.arange(rows)
    return products.reshape(groups * rows, -1).index_select(0, places)


def _trilinear(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    expand_a: Sequence[int],
    expand_b: Sequence[int],
    expand_c: Sequence[int],
    dims: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The sum over `dims` of the product of three tensors with dimensions inserted."""
    bilinear = ([1, 3], [0], [1, 2], [2, 3])
    if tuple(map(list, (expand_a, expand_b, expand_c, dims))) == bilinear and a.dim() == 2:
        outputs, _, right = b.shape
        # Rows times the matrices of all outputs; the full product would be much larger.
        half = a @ b.permute(1, 0, 2).reshape(a.shape[1], -1)
        return (half.reshape(len(a), outputs, right) * c.unsqueeze(1)).sum(2)
    for dim in sorted(expand_a):
        a = a.unsqueeze(dim)
    for dim in sorted(expand_b):
        b = b.unsqueeze(dim)
    for dim in sorted(expand_c):
        c = c.unsqueeze(dim)
    return (a * b * c).sum(list(dims)) if dims else a * b * c


def _distances(x: Tensor, y: Tensor, p: float, mode: int | None = None) -> Tensor:
    """The p-norms of the differences of all rows of `x` and all rows of `y`."""
    apart = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(x.dtype).sum(-1)
    if p == math.inf:
        return apart.amax(-1)
    if p == 1:
        return apart.sum(-1)
    if p == 2:
        return (apart * apart).sum(-1).sqrt()
    return (apart**p).sum(-1) ** (1 / p)


def _transposed_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """A transposed convolution of volumes, which TVM's importer lacks."""
    if not transposed or weight.dim() != 5 or x.dim() != 5:
        return NotImplemented
    kernel = list(weight.shape[2:])
    apart = kernel == list(stride) and groups == 1 and set(dilation) == {1}
    if apart and not any(padding) and not any(output_padding):
        y = _patches(x, weight)
    else:
        y = F.conv3d(
            _spread(x, kernel, stride, padding, dilation, output_padding),
            _turned(weight, groups),
            dilation=list(dilation),
            groups=groups,
        )
    return y if bias is None else y + bias.reshape(1, -1, 1, 1, 1)


def _patches(x: Tensor, weight: Tensor) -> Tensor:
    """Each element becomes a patch of its own: a matrix product."""
    batch, channels, *image = x.shape
    outputs, *kernel = weight.shape[1:]
    rows = x.permute(0, 2, 3, 4, 1).reshape(-1, channels)
    patches = (rows @ weight.reshape(channels, -1)).reshape(batch, *image, outputs, *kernel)
    sizes = [extent * width for extent, width in zip(image, kernel, strict=True)]
    return patches.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(batch, outputs, *sizes)


def _spread(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> Tensor:
    """`x` with zeros between its elements, padded or cropped as for a usual convolution."""
    widths: list[int] = []
    for axis, step in enumerate(stride):
        dim, extent = axis + 2, x.shape[axis + 2]
        if step > 1:
            zeros = F.pad(x.unsqueeze(dim + 1), [0, 0] * (4 - dim) + [0, step - 1])
            shape = [*x.shape[:dim], extent * step, *x.shape[dim + 1 :]]
            x = zeros.reshape(shape).narrow(dim, 0, (extent - 1) * step + 1)
        around = dilation[axis] * (kernel[axis] - 1) - padding[axis]
        widths = [around, around + output_padding[axis], *widths]
    return F.pad(x, widths)


def _turned(weight: Tensor, groups: int) -> Tensor:
    """The weights of the usual convolution, from those of the transposed one."""
    inputs, outputs, *kernel = weight.shape
    grouped = weight.reshape(groups, inputs // groups, outputs, *kernel).transpose(1, 2)
    return grouped.reshape(groups * outputs, inputs // groups, *kernel).flip(2, 3, 4)
