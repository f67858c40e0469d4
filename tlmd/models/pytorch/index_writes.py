"""Decompositions that write out how PyTorch writes at indices.

After them each write at tensors of indices is one ``index_put`` into a vector, at places counted
from the start.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tlmd.models.pytorch.indexing import coordinates, indexed_dimensions, row_numbers, rows_first

aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `run_decompositions`."""
    return {
        aten.index_put.default: _index_put,
        aten._unsafe_index_put.default: _index_put,
        aten.scatter.src: _scatter,
        aten.scatter.value: _scatter_value,
        aten.scatter_add.default: lambda x, dim, i, s: _scatter(x, dim, i, s, accumulate=True),
        aten.slice_scatter.default: _slice_scatter,
        aten.select_scatter.default: _select_scatter,
    }


def _index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Any:
    """`x` with `values` at `indices`, of which there is one per leading dimension of `x`.

    None stands for a dimension that is written as a whole. The values are broadcast to the shape of
    ``x[indices]``.
    """
    parts = indexed_dimensions(indices)
    if parts is None:
        return _masked_put(x, indices, values, accumulate)
    dims, tensors = parts
    if x.dim() == 1 and len(tensors) == 1 and _put_already(x, tensors[0], values):
        return NotImplemented
    numbers = row_numbers(tensors, [x.shape[dim] for dim in dims])
    rest = [dim for dim in range(x.dim()) if dim not in dims]
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    shape = [x.shape[dim] for dim in rest]
    width, rank = math.prod(shape), numbers.dim()
    if adjacent:
        before = [x.shape[dim] for dim in rest if dim < dims[0]]
        after = [x.shape[dim] for dim in rest if dim > dims[0]]
        values = values.expand([*before, *numbers.shape, *after])
        spread = range(len(before), len(before) + rank)
        values = values.permute(
            [*spread, *(axis for axis in range(values.dim()) if axis not in spread)]
        )
    else:
        values = values.expand([*numbers.shape, *shape])
    rows = rows_first(x, dims)
    places = numbers.reshape(-1, 1) * width + torch.arange(width, device=x.device)
    flat = _put(rows.reshape(-1), places.reshape(-1), values.reshape(-1), accumulate)
    order = dims + rest
    back = [order.index(dim) for dim in range(x.dim())]
    return flat.reshape([x.shape[dim] for dim in order]).permute(back)


def _put_already(x: Tensor, index: Tensor, values: Tensor) -> bool:
    """Whether this is a call of `_put`, which a decomposition must not take apart again."""
    return bool(index.dim() == 1 and values.shape == index.shape and values.dtype == x.dtype)


def _put(flat: Tensor, places: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """A vector ``flat [n]`` with ``values [k]`` at ``places [k]``, which count from its start.

    With `accumulate` the values are added; for booleans that is a logical or.
    """
    if accumulate and flat.dtype == torch.bool:
        return _put(flat.to(torch.int32), places, values, accumulate).to(torch.bool)
    written: Tensor = aten.index_put.default(flat, (places,), values.to(flat.dtype), accumulate)
    return written


def _masked_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Any:
    """`x` with one value where a mask of the same shape is true."""
    mask = indices[0]
    if len(indices) != 1 or values.numel() != 1:
        return NotImplemented
    if mask is None or mask.dtype != torch.bool or mask.shape != x.shape:
        return NotImplemented
    value = values.reshape(()).to(x.dtype)
    return torch.where(mask, x + value if accumulate else value, x)


def _scatter(
    x: Tensor, dim: int, index: Tensor, source: Tensor, *, accumulate: bool = False
) -> Tensor:
    """`x` with the elements of `source` at `index` along a dimension.

    `index` and `source` have as many dimensions as `x`; `source` is at least as large as `index`.
    """
    if x.dim() == 0:
        return (x + source if accumulate else source.to(x.dtype)).reshape(())
    if index.numel() == 0:
        return x.clone()
    dim %= x.dim()
    for axis in range(x.dim()):
        if source.shape[axis] != index.shape[axis]:
            source = source.narrow(axis, 0, index.shape[axis])
    places = coordinates(x, dim, index)
    return _put(x.reshape(-1), places, source.reshape(-1), accumulate).reshape(x.shape)


def _scatter_value(x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    return _scatter(x, dim, index, torch.full(index.shape, value, dtype=x.dtype, device=x.device))


def _slice_scatter(
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """`x` with `source` at the places of a slice of one dimension."""
    extent = x.shape[dim]
    first, last, _ = slice(start, end).indices(extent)
    count = source.shape[dim]
    if count == 0:
        return x.clone()
    source = source.to(x.dtype).expand([*x.shape[:dim], count, *x.shape[dim:][1:]])
    if step == 1:
        parts = (x.narrow(dim, 0, first), source, x.narrow(dim, last, extent - last))
        return torch.cat([part for part in parts if part.shape[dim]], dim)
    dim %= x.dim()
    # Each place reads either `source` or `x`.
    places = torch.arange(extent, device=x.device)
    steps = (places - first).div(step, rounding_mode="floor")
    written = (places >= first) & (places < last) & (steps * step + first == places)
    shape = [-1 if axis == dim else 1 for axis in range(x.dim())]
    spread = aten.index_select.default(source, dim, steps.clamp(0, count - 1))
    return torch.where(written.reshape(shape), spread, x)


def _select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Any:
    dim, index = dim % x.dim(), operator.index(index) % x.shape[dim]
    return aten.slice_scatter.default(x, source.unsqueeze(dim), dim, index, index + 1, 1)
