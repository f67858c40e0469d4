"""Decompositions that write out how PyTorch reads at indices.

TVM's operators neither know negative indices nor mixtures of indices and slices. After these
decompositions every index lies in its dimension, and each read at tensors of indices is one
``index_select`` along one dimension.
"""

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
        aten.select.int: _select,
        aten.slice.Tensor: _slice,
        aten.index.Tensor: _index,
        aten._unsafe_index.Tensor: _index,
        aten.take.default: _take,
        aten.gather.default: _gather,
        aten.diagonal.default: _diagonal,
        aten.unfold.default: _unfold,
        aten.as_strided.default: _as_strided,
        aten.constant_pad_nd.default: _pad,
        aten.flip.default: _flip,
        aten.permute.default: _permute,
    }


def in_range(index: Tensor, extent: int) -> Tensor:
    """Indices that all count from the start; in PyTorch negative ones count from the end."""
    index = index.to(torch.int64)
    return torch.where(index < 0, index + extent, index)


def _select(x: Tensor, dim: int, index: int) -> Any:
    if isinstance(index, int) and index < 0:
        return aten.select.int(x, dim, index + x.shape[dim])
    return NotImplemented


def _slice(
    x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    extent = x.shape[dim]
    if not all(isinstance(bound, int | None) for bound in (extent, start, end)):
        return NotImplemented
    first, last, _ = slice(start, end).indices(extent)
    last = max(first, last)
    if (first, last, step) == (0, extent, 1):
        return x.clone()
    if (start, end) == (first, last):
        return NotImplemented
    return aten.slice.Tensor(x, dim, first, last, step)


def rows_first(x: Tensor, dims: list[int]) -> Tensor:
    """`x` as ``[rows, *rest]``: the dimensions `dims` stand first, merged to one."""
    order = dims + [dim for dim in range(x.dim()) if dim not in dims]
    rest = [x.shape[dim] for dim in order[len(dims) :]]
    if order != list(range(x.dim())):
        x = x.permute(order)
    return x.reshape([math.prod(x.shape[: len(dims)]), *rest])


def row_numbers(indices: list[Tensor], extents: list[int]) -> Tensor:
    """The row in `rows_first` for each element of the broadcast `indices`.

    There is one tensor of indices and one extent for each merged dimension.
    """
    numbers = in_range(indices[0], extents[0])
    for index, extent in zip(indices[1:], extents[1:], strict=True):
        numbers = numbers * extent + in_range(index, extent)
    return numbers


def indexed_dimensions(indices: Sequence[Tensor | None]) -> tuple[list[int], list[Tensor]] | None:
    """The indexed dimensions and their indices; None if there are masks, which have no shape."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    tensors = [index for index in indices if index is not None]
    if not dims or any(index.dtype in (torch.bool, torch.uint8) for index in tensors):
        return None
    return dims, tensors


def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """``x[indices]``, with one index, or None, for each leading dimension of `x`."""
    parts = indexed_dimensions(indices)
    if parts is None:
        return NotImplemented
    dims, tensors = parts
    if len(dims) == 1:
        (dim,), (index,) = dims, tensors
        index = in_range(index, x.shape[dim])
        taken = aten.index_select.default(x, dim, index.reshape(-1))
        return taken.reshape([*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]])
    numbers = row_numbers(tensors, [x.shape[dim] for dim in dims])
    rows = rows_first(x, dims)
    taken = aten.index_select.default(rows, 0, numbers.reshape(-1))
    taken = taken.reshape([*numbers.shape, *rows.shape[1:]])
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    if not adjacent or dims[0] == 0:
        return taken
    rank = numbers.dim()
    # The indices' dimensions stand where the indexed ones stood.
    before = list(range(rank, rank + dims[0]))
    after = list(range(rank + dims[0], taken.dim()))
    return taken.permute([*before, *range(rank), *after])


def _take(x: Tensor, index: Tensor) -> Tensor:
    places = in_range(index, x.numel()).reshape(-1)
    taken: Tensor = aten.index_select.default(x.reshape(-1), 0, places)
    return taken.reshape(index.shape)


def coordinates(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The places in the flat `x` of the elements at `index` of ``gather`` and ``scatter``.

    A vector, with one place for each element of `index`.
    """
    steps = [math.prod(x.shape[axis + 1 :]) for axis in range(x.dim())]
    places = index.to(torch.int64) * steps[dim]
    for axis in range(x.dim()):
        if axis != dim and index.shape[axis] > 1:
            shape = [1] * x.dim()
            shape[axis] = index.shape[axis]
            along = torch.arange(index.shape[axis], device=x.device) * steps[axis]
            places = places + along.reshape(shape)
    return places.reshape(-1)


def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    if x.dim() == 0 or index.dim() == 0:
        return x.reshape(-1)[:1].expand(max(index.numel(), 1)).reshape(index.shape)
    dim %= x.dim()
    others = [axis for axis in range(x.dim()) if axis != dim]
    if all(index.shape[axis] == x.shape[axis] for axis in others) and index.numel():
        return NotImplemented
    taken = aten.index_select.default(x.reshape(-1), 0, coordinates(x, dim, index))
    return taken.reshape(index.shape)


def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A diagonal of two dimensions, as the last dimension."""
    dims = [dim1 % x.dim(), dim2 % x.dim()]
    rows, columns = (x.shape[dim] for dim in dims)
    down, right = max(-offset, 0), max(offset, 0)
    count = max(0, min(rows - down, columns - right))
    flat = rows_first(x, dims)
    first = down * columns + right
    taken = flat[first : first + count * (columns + 1) : columns + 1][:count]
    return taken.permute([*range(1, taken.dim()), 0])


def _unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows of a dimension; their number takes its place, and `size` is the last dimension."""
    if x.dim() == 0:
        return x.reshape(1)[:size]
    dim %= x.dim()
    count = (x.shape[dim] - size) // step + 1
    starts = torch.arange(count, device=x.device).unsqueeze(1) * step
    places = (starts + torch.arange(size, device=x.device)).reshape(-1)
    taken: Tensor = aten.index_select.default(x, dim, places)
    taken = taken.reshape([*x.shape[:dim], count, size, *x.shape[dim + 1 :]])
    return taken.movedim(dim + 1, -1)


def _as_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    # The elements lie in memory as in `x` only if `x` is not a view of something else.
    if not x.is_contiguous() or x.storage_offset():
        return NotImplemented
    first, count = storage_offset or 0, math.prod(size)
    dense = [math.prod(size[axis + 1 :]) for axis in range(len(size))]
    if all(n == 1 or a == b for n, a, b in zip(size, stride, dense, strict=True)):
        return x.reshape(-1)[first : first + count].reshape(size)
    places: Any = torch.full((), first, dtype=torch.int64, device=x.device)
    for extent, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(extent, device=x.device) * step
    return aten.index_select.default(x.reshape(-1), 0, places.reshape(-1)).reshape(size)


def _pad(x: Tensor, pad: Sequence[int], value: float = 0) -> Any:
    if all(width >= 0 for width in pad):
        return NotImplemented
    pairs = list(zip(pad[::2], pad[1::2], strict=True))
    for back, (before, after) in enumerate(pairs, 1):
        start, cut = max(0, -before), max(0, -after)
        if start or cut:
            x = x.narrow(-back, start, x.shape[-back] - start - cut)
    return aten.constant_pad_nd.default(x, [max(0, width) for width in pad], value)


def _flip(x: Tensor, dims: Sequence[int]) -> Any:
    return x.clone() if x.dim() == 0 or not dims else NotImplemented


def _permute(x: Tensor, dims: Sequence[int]) -> Any:
    if all(dim >= 0 for dim in dims):
        return NotImplemented
    return aten.permute.default(x, [dim % x.dim() for dim in dims])
