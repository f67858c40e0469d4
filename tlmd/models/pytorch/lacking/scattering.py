"""Decompositions of searches, bags and scattered reductions that TVM lacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_COPIES = (
    *(aten.lift_fresh_copy.default, aten.detach_.default, aten.detach.default),
    *(aten.clone.default, aten.alias.default),
)
_SUM, _MEAN, _MAX = range(3)  # modes of an embedding bag


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `run_decompositions`."""
    return {
        aten.searchsorted.Tensor: _search,
        aten.searchsorted.Scalar: lambda row, x, **options: _search(
            row, torch.scalar_tensor(x), **options
        ),
        aten.repeat_interleave.Tensor: _repeated_places,
        aten._embedding_bag.default: _embedding_bag,
        aten._embedding_bag_forward_only.default: _embedding_bag,
        aten.scatter_reduce.two: _scatter_reduce,
    }


def converters() -> dict[str, Callable[[Any, Any], Any]]:
    """The converters for what is left of `scatter_reduce`."""
    from tvm import relax

    reductions = {"amax": "max", "amin": "min", "prod": "mul"}

    def convert(node: Any, importer: Any) -> Any:
        x, index, source = (importer.env[node.args[place]] for place in (0, 2, 3))
        call = relax.op.scatter_elements(
            x, index, source, axis=node.args[1], reduction=reductions[node.args[4]]
        )
        return importer.block_builder.emit(call)

    return {"scatter_reduce.two": convert}


def tell_repeated_sizes(program: Any) -> None:
    """Give the size of the result where the numbers of repetitions are constants."""
    signature = program.graph_signature
    names = {**signature.inputs_to_lifted_tensor_constants, **signature.inputs_to_buffers}
    for node in program.graph.nodes:
        if getattr(node.target, "overloadpacket", None) is not aten.repeat_interleave:
            continue
        repeats = node.args[0 if node.target is aten.repeat_interleave.Tensor else 1]
        while getattr(repeats, "target", None) in _COPIES:
            repeats = repeats.args[0]
        name = names.get(getattr(repeats, "name", ""))
        value = program.constants.get(name, program.state_dict.get(name))
        if value is not None and node.kwargs.get("output_size") is None:
            node.kwargs = {**node.kwargs, "output_size": int(value.sum())}


def _search(
    row: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """PyTorch's own binary search, which gives the same where a row is not sorted."""
    row = row if sorter is None else torch.gather(row, -1, sorter)
    after = torch.gt if right or side == "right" else torch.ge
    extent = row.shape[-1]
    value = x.reshape(1) if x.dim() == 0 else x
    start = torch.zeros_like(value, dtype=torch.int64)
    end = torch.full_like(start, extent)
    for _ in range(extent.bit_length()):
        middle = (start + end) // 2
        place = middle.clamp(max=extent - 1)
        if row.dim() == 1:
            found = torch.index_select(row, 0, place.reshape(-1)).reshape(place.shape)
        else:
            found = torch.gather(row, -1, place)
        left = after(found, value) | (start >= end)
        start, end = torch.where(left, start, middle + 1), torch.where(left, middle, end)
    return start.reshape(x.shape).to(torch.int32 if out_int32 else torch.int64)


def _repeated_places(repeats: Tensor, *, output_size: int | None = None) -> Any:
    """Place i, as often as it is repeated, if the number of all is known."""
    if output_size is None:
        return NotImplemented
    ends = torch.cumsum(repeats, 0)
    return _search(ends, torch.arange(output_size), right=True).to(repeats.dtype)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, ...]:
    """Rows of a table, reduced over the bag in which they are."""
    starts = offsets[:-1] if include_last_offset else offsets
    order = torch.arange(len(indices), device=indices.device)
    bag = _search(starts, order, right=True) - 1
    inside = bag == torch.arange(len(starts), device=indices.device).unsqueeze(1)
    if padding_idx >= 0:
        inside = inside & (indices != padding_idx)
    rows = torch.nn.functional.embedding(indices, weight)
    counts = inside.to(torch.int64).sum(1)
    if mode == _MAX:
        masked = torch.where(inside.unsqueeze(-1), rows, -math.inf)
        result = torch.where(counts.unsqueeze(1) > 0, masked.amax(1), 0.0).to(rows.dtype)
    else:
        factors = inside.to(rows.dtype)
        if per_sample_weights is not None:
            factors = factors * per_sample_weights
        if mode == _MEAN:
            factors = factors / counts.clamp(min=1).unsqueeze(1)
        result = factors @ rows
    return result, bag, counts, torch.zeros_like(starts)


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """One that starts from `x` and has its own place in TVM: a maximum, minimum or product."""
    if x.dim() == 0:
        x, index, source = (t.reshape(1) for t in (x, index, source))
        options = {"include_self": include_self}
        return aten.scatter_reduce.two(x, 0, index, source, reduce, **options).reshape(())
    if reduce in ("sum", "mean"):
        begun = x if include_self else torch.scatter(x, dim, index, 0)
        total = torch.scatter_add(begun, dim, index, source)
        if reduce == "sum":
            return total
        ones = torch.ones_like(x) if include_self else torch.zeros_like(x)
        counts = torch.scatter_add(ones, dim, index, torch.ones_like(source)).clamp(min=1)
        if x.is_floating_point():
            return total / counts
        return torch.div(total, counts, rounding_mode="floor")
    if include_self:
        return NotImplemented
    begun = torch.scatter(x, dim, index, _neutral(reduce, x.dtype))
    return aten.scatter_reduce.two(begun, dim, index, source, reduce)


def _neutral(reduce: str, dtype: torch.dtype) -> float:
    """The number that changes no result."""
    if reduce == "prod":
        return 1
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max
