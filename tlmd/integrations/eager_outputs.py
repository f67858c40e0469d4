"""Gives the outputs of a library the memory layout of those of eager PyTorch.

A library writes new contiguous tensors. Eager PyTorch may return other strides, an input itself, a
view of it, a weight, or one tensor twice; the caller may rely on each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_LIBRARY = "library"
Strides = tuple[int, ...]


@dataclass(frozen=True)
class _Place:
    """Where the elements of an output are."""

    source: str
    """``library``, ``input``, ``weight`` or ``output``: an earlier one."""
    index: int
    """Of the input, the weight or the output."""
    is_same: bool = False
    """Whether it is the tensor itself."""
    size: Strides = ()
    strides: Strides = ()
    offset: int = 0
    """From the first element of the source."""


class EagerOutputs:
    """The layout of the outputs of one call, for calls with inputs of the same layout."""

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
        given: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """`weights` were there in the call; `given`, if not the same, are to be returned later."""
        self._weights = weights if given is None else given
        self.is_known = not _overlap(inputs)
        """Whether it can be told of which input an output is a part, and given again."""
        self._changed: list[tuple[int, _Place]] = []
        sources = {"input": list(inputs), "weight": list(weights), "output": []}
        for index, output in enumerate(outputs):
            place = _place(index, output, sources)
            if place is None:
                self.is_known = False
            elif place.source != _LIBRARY or place.strides != _contiguous(output):
                self._changed.append((index, place))
            sources["output"].append(output)

    def apply(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """The outputs of a library as eager PyTorch returns them."""
        if not self._changed:
            return outputs
        result = list(outputs)
        sources = {"input": inputs, "weight": self._weights, "output": result}
        for index, place in self._changed:
            if place.source == _LIBRARY:
                result[index] = _with_strides(outputs[index], place.strides)
                continue
            source = sources[place.source][place.index]
            if not place.is_same:
                offset = source.storage_offset() + place.offset
                source = source.as_strided(place.size, place.strides, offset)
            result[index] = source
        return result


def _place(
    index: int, output: torch.Tensor, sources: dict[str, list[torch.Tensor]]
) -> _Place | None:
    """Where an output is; None if a library cannot give the same again."""
    if output.layout != torch.strided or output.device.type != "cpu" or output.is_conj():
        return None
    size, strides = tuple(output.shape), tuple(output.stride())
    for name, tensors in sources.items():
        for number, source in enumerate(tensors):
            if output is source:
                return _Place(name, number, is_same=True)
    for name, tensors in sources.items():
        for number, source in enumerate(tensors):
            if not _share(output, source):
                continue
            if output.dtype != source.dtype or output.is_neg() != source.is_neg():
                return None
            offset = int(output.storage_offset() - source.storage_offset())
            if name != "output" or _contains(source, output):
                return _Place(name, number, False, size, strides, offset)
            if _intersect(source, output):
                return None
    return _Place(_LIBRARY, index, False, size, strides)


def _share(first: torch.Tensor, second: torch.Tensor) -> bool:
    if not (first.numel() and second.numel()) or second.layout != torch.strided:
        return False
    return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The first element in its storage, and the one after the last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    start = int(tensor.storage_offset())
    return start, start + 1 + sum((size - 1) * stride for size, stride in steps)


def _contains(outer: torch.Tensor, inner: torch.Tensor) -> bool:
    (low, high), (first, last) = _range(outer), _range(inner)
    return low <= first and last <= high


def _intersect(a: torch.Tensor, b: torch.Tensor) -> bool:
    (low, high), (first, last) = _range(a), _range(b)
    return low < last and first < high


def _overlap(tensors: Sequence[torch.Tensor]) -> bool:
    return any(_share(a, b) for a, b in itertools.combinations(tensors, 2))


def _contiguous(tensor: torch.Tensor) -> Strides:
    """The strides of a contiguous tensor of this shape; its own where only size 1 is strided."""
    if tensor.is_contiguous():
        return tuple(tensor.stride())
    return torch.empty(tensor.shape, device="meta").stride()


def _with_strides(tensor: torch.Tensor, strides: Strides) -> torch.Tensor:
    """A copy with these strides; a dimension with stride 0 holds one element for all."""
    once = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]
    copy = torch.empty_strided(once.shape, strides, dtype=tensor.dtype)
    return copy.copy_(once).as_strided(tensor.shape, strides)
