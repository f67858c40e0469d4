"""Decompositions that write out how PyTorch reads and writes at indices.

TVM's operators neither know negative indices nor mixtures of indices and slices. After these
decompositions every index lies in its dimension, and what reads at tensors of indices is one
``index_select`` along one dimension.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `run_decompositions`."""
    return {
        aten.select.int: _select,
        aten.slice.Tensor: _slice,
        aten.index.Tensor: _index,
        aten._unsafe_index.Tensor: _index,
        aten.index_put.default: _index_put,
        aten._unsafe_index_put.default: _index_put,
        aten.take.default: _take,
        aten.gather.default: _gather,
        aten.scatter.src: _scatter,
        aten.scatter.value: _scatter_value,
        aten.scatter_add.default: lambda x, dim, i, s: _scatter(x, dim, i, s, accumulate=True),
        aten.slice_scatter.default: _slice_scatter,
        aten.select_scatter.default: _select_scatter,
        aten.diagonal.default: _diagonal,
        aten.unfold.default: _unfold,
        aten.as_strided.default: _as_strided,
        aten.constant_pad_nd.default: _pad,
        aten.flip.default: _flip,
        aten.permute.default: _permute,
    }


def in_range(index: Any, extent: int) -> Any:
    """Tensors of indices, counted from the start; PyTorch counts negative ones from the end."""
    index = index.to(torch.int64)
    return torch.where(index < 0, index + extent, index)


def _select(x: Any, dim: int, index: int) -> Any:
    if isinstance(index, int) and index < 0:
        return aten.select.int(x, dim, index + x.shape[dim])
    return NotImplemented


def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
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


def _rows(x: Any, dims: list[int]) -> Any:
    """`x` with the dimensions `dims` first and merged."""
    order = dims + [dim for dim in range(x.dim()) if dim not in dims]
    rest = [x.shape[dim] for dim in order[len(dims) :]]
    if order != list(range(x.dim())):
        x = x.permute(order)
    return x.reshape([math.prod(x.shape[: len(dims)]), *rest])


def _row_numbers(indices: list[Any], extents: list[int]) -> Any:
    """One number per element of the broadcast `indices`: its row in dimensions merged to one."""
    numbers = in_range(indices[0], extents[0])
    for index, extent in zip(indices[1:], extents[1:], strict=True):
        numbers = numbers * extent + in_range(index, extent)
    return numbers


def _tensors(indices: Any) -> tuple[list[int], list[Any]] | None:
    """The indexed dimensions and their indices; None if there are masks, which have no shape."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    tensors = [indices[dim] for dim in dims]
    if not dims or any(index.dtype in (torch.bool, torch.uint8) for index in tensors):
        return None
    return dims, tensors


def _index(x: Any, indices: Any) -> Any:
    parts = _tensors(indices)
    if parts is None:
        return NotImplemented
    dims, tensors = parts
    if len(dims) == 1:
        (dim,), (index,) = dims, tensors
        index = in_range(index, x.shape[dim])
        taken = aten.index_select.default(x, dim, index.reshape(-1))
        return taken.reshape([*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]])
    numbers = _row_numbers(tensors, [x.shape[dim] for dim in dims])
    rows = _rows(x, dims)
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


def _index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    parts = _tensors(indices)
    if parts is None:
        return _masked_put(x, indices, values, accumulate)
    dims, tensors = parts
    if x.dim() == 1 and len(tensors) == 1 and _put_already(x, tensors[0], values):
        return NotImplemented
    numbers = _row_numbers(tensors, [x.shape[dim] for dim in dims])
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
    rows = _rows(x, dims)
    places = numbers.reshape(-1, 1) * width + torch.arange(width, device=x.device)
    flat = _put(rows.reshape(-1), places.reshape(-1), values.reshape(-1), accumulate)
    order = dims + rest
    back = [order.index(dim) for dim in range(x.dim())]
    return flat.reshape([x.shape[dim] for dim in order]).permute(back)


def _put_already(x: Any, index: Any, values: Any) -> bool:
    # The result of `_put`, which this decomposition must not take apart again.
    return bool(index.dim() == 1 and values.shape == index.shape and values.dtype == x.dtype)


def _put(flat: Any, places: Any, values: Any, accumulate: bool) -> Any:
    if accumulate and flat.dtype == torch.bool:
        return _put(flat.to(torch.int32), places, values, accumulate).to(torch.bool)
    return aten.index_put.default(flat, (places,), values.to(flat.dtype), accumulate)


def _masked_put(x: Any, indices: Any, values: Any, accumulate: bool) -> Any:
    """Writing one value where a mask of the shape of `x` says so."""
    mask = indices[0]
    if len(indices) != 1 or values.numel() != 1:
        return NotImplemented
    if mask is None or mask.dtype != torch.bool or mask.shape != x.shape:
        return NotImplemented
    value = values.reshape(()).to(x.dtype)
    return torch.where(mask, x + value if accumulate else value, x)


def _take(x: Any, index: Any) -> Any:
    places = in_range(index, x.numel()).reshape(-1)
    return aten.index_select.default(x.reshape(-1), 0, places).reshape(index.shape)


def _coordinates(x: Any, dim: int, index: Any) -> Any:
    """The places in the flat `x` that ``gather`` and ``scatter`` mean with `index`."""
    steps = [math.prod(x.shape[axis + 1 :]) for axis in range(x.dim())]
    places = index.to(torch.int64) * steps[dim]
    for axis in range(x.dim()):
        if axis != dim and index.shape[axis] > 1:
            shape = [1] * x.dim()
            shape[axis] = index.shape[axis]
            along = torch.arange(index.shape[axis], device=x.device) * steps[axis]
            places = places + along.reshape(shape)
    return places.reshape(-1)


def _gather(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    if x.dim() == 0 or index.dim() == 0:
        return x.reshape(-1)[:1].expand(max(index.numel(), 1)).reshape(index.shape)
    dim %= x.dim()
    others = [axis for axis in range(x.dim()) if axis != dim]
    if all(index.shape[axis] == x.shape[axis] for axis in others) and index.numel():
        return NotImplemented
    taken = aten.index_select.default(x.reshape(-1), 0, _coordinates(x, dim, index))
    return taken.reshape(index.shape)


def _scatter(x: Any, dim: int, index: Any, source: Any, *, accumulate: bool = False) -> Any:
    if x.dim() == 0:
        return (x + source if accumulate else source.to(x.dtype)).reshape(())
    if index.numel() == 0:
        return x.clone()
    dim %= x.dim()
    for axis in range(x.dim()):
        if source.shape[axis] != index.shape[axis]:
            source = source.narrow(axis, 0, index.shape[axis])
    places = _coordinates(x, dim, index)
    return _put(x.reshape(-1), places, source.reshape(-1), accumulate).reshape(x.shape)


def _scatter_value(x: Any, dim: int, index: Any, value: Any) -> Any:
    return _scatter(x, dim, index, torch.full(index.shape, value, dtype=x.dtype, device=x.device))


def _slice_scatter(
    x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
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


def _select_scatter(x: Any, source: Any, dim: int, index: int) -> Any:
    dim, index = dim % x.dim(), operator.index(index) % x.shape[dim]
    return aten.slice_scatter.default(x, source.unsqueeze(dim), dim, index, index + 1, 1)


def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    dims = [dim1 % x.dim(), dim2 % x.dim()]
    rows, columns = (x.shape[dim] for dim in dims)
    down, right = max(-offset, 0), max(offset, 0)
    count = max(0, min(rows - down, columns - right))
    flat = _rows(x, dims)
    first = down * columns + right
    taken = flat[first : first + count * (columns + 1) : columns + 1][:count]
    return taken.permute([*range(1, taken.dim()), 0])


def _unfold(x: Any, dim: int, size: int, step: int) -> Any:
    if x.dim() == 0:
        return x.reshape(1)[:size]
    dim %= x.dim()
    count = (x.shape[dim] - size) // step + 1
    starts = torch.arange(count, device=x.device).unsqueeze(1) * step
    places = (starts + torch.arange(size, device=x.device)).reshape(-1)
    taken = aten.index_select.default(x, dim, places)
    taken = taken.reshape([*x.shape[:dim], count, size, *x.shape[dim + 1 :]])
    return taken.movedim(dim + 1, -1)


def _as_strided(x: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
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


def _pad(x: Any, pad: Any, value: Any = 0) -> Any:
    if all(width >= 0 for width in pad):
        return NotImplemented
    pairs = list(zip(pad[::2], pad[1::2], strict=True))
    for back, (before, after) in enumerate(pairs, 1):
        start, cut = max(0, -before), max(0, -after)
        if start or cut:
            x = x.narrow(-back, start, x.shape[-back] - start - cut)
    return aten.constant_pad_nd.default(x, [max(0, width) for width in pad], value)


def _flip(x: Any, dims: Any) -> Any:
    return x.clone() if x.dim() == 0 or not dims else NotImplemented


def _permute(x: Any, dims: Any) -> Any:
    if all(dim >= 0 for dim in dims):
        return NotImplemented
    return aten.permute.default(x, [dim % x.dim() for dim in dims])
