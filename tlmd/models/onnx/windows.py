"""Rewriting of ONNX's pools.

TVM pads some windows of `SAME_LOWER` too little, and does not compute the places of maxima.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlmd.models.onnx.rewriting import Operation, Rewriters

_SAME = ("SAME_UPPER", "SAME_LOWER")


def rewriters() -> Rewriters:
    """The rewriters of this module."""
    return {
        ("", "AveragePool"): _with_pads,
        ("", "LpPool"): _with_pads,
        ("", "MaxPool"): _max_pool,
    }


def _with_pads(operation: Operation) -> Sequence[str] | None:
    """Give the numbers of a padding that is the same before and after."""
    attributes = dict(operation.attributes)
    if attributes.get("auto_pad") not in _SAME:
        return None
    first, last = _pads(operation)
    for name in ("auto_pad", "ceil_mode"):
        attributes.pop(name, None)
    attributes["pads"] = [*first, *last]
    kind = operation.node.op_type
    return [operation.writer.call(kind, operation.input(0), **attributes)]


def _sizes(operation: Operation) -> tuple[list[int], list[int], list[int], list[int]]:
    """The image, and the kernel, the strides and the dilations of the windows."""
    attributes = operation.attributes
    image = operation.shape(operation.input(0))[2:]
    ones = [1] * len(image)
    return (
        image,
        list(attributes["kernel_shape"]),
        list(attributes.get("strides", ones)),
        list(attributes.get("dilations", ones)),
    )


def _pads(operation: Operation) -> tuple[list[int], list[int]]:
    """The padding before and after each dimension of the image."""
    attributes = operation.attributes
    image, kernel, strides, dilations = _sizes(operation)
    if attributes.get("auto_pad") not in _SAME:
        pads = list(attributes.get("pads", [0] * (2 * len(image))))
        return pads[: len(image)], pads[len(image) :]
    first, last = [], []
    for extent, width, stride, dilation in zip(image, kernel, strides, dilations, strict=True):
        count = -(-extent // stride)
        total = max((count - 1) * stride + (width - 1) * dilation + 1 - extent, 0)
        less = total // 2
        before = less if attributes["auto_pad"] == "SAME_UPPER" else total - less
        first.append(before)
        last.append(total - before)
    return first, last


def _max_pool(operation: Operation) -> Sequence[str] | None:
    """The largest elements and their places, which are counted through the whole input."""
    if not operation.output(1):
        return _with_pads(operation)
    if operation.attributes.get("storage_order"):
        return None
    writer, x = operation.writer, operation.input(0)
    batch, channels, *image = operation.shape(x)
    counts = operation.shape(_given(operation.node.output))[2:]
    first, _ = _pads(operation)
    places = [
        _places(extent, count, before, *sizes)
        for extent, count, before, *sizes in zip(
            image, counts, first, *_sizes(operation)[1:], strict=True
        )
    ]
    windows, inside = x, math.prod(p.shape[1] for p in places)
    for axis, taken in enumerate(places):
        windows = writer.take(windows, taken, 2 + 2 * axis)
    rank = 2 + 2 * len(image)
    order = [0, 1, *range(2, rank, 2), *range(3, rank, 2)]
    windows = writer.call("Transpose", windows, perm=order)
    windows = writer.reshape(windows, [batch, channels, math.prod(counts), inside])
    flat = _flat_places(places, image)
    starts = np.arange(len(flat)) * inside
    chosen = windows
    if operation.dtype(x) in (np.int8, np.uint8):
        chosen = writer.cast(windows, np.int32)
    number = writer.call("ArgMax", chosen, axis=3, keepdims=0)
    number = writer.call("Add", number, writer.constant(starts))
    place = writer.call("Gather", writer.constant(flat.reshape(-1)), number, axis=0)
    planes = np.arange(batch * channels).reshape(batch, channels, 1) * math.prod(image)
    place = writer.call("Add", place, writer.constant(planes))
    largest = writer.reduce("ReduceMax", windows, [3], False)
    shape = [batch, channels, *counts]
    return [writer.reshape(largest, shape), writer.reshape(place, shape)]


def _given(names: Sequence[str]) -> str:
    return next(name for name in names if name)


def _places(
    extent: int, count: int, before: int, width: int, stride: int, dilation: int
) -> NDArray[Any]:
    """Places ``[windows, kernel]``. A place in the padding is moved to one in the same window."""
    starts = np.arange(count)[:, None] * stride - before
    places = starts + np.arange(width) * dilation
    first = np.where(starts < 0, starts % dilation, starts)
    last = starts + (extent - 1 - starts) // dilation * dilation
    inside: NDArray[Any] = np.minimum(np.maximum(places, first), last)
    return inside


def _flat_places(places: Sequence[NDArray[Any]], image: Sequence[int]) -> NDArray[Any]:
    """The places of whole windows in the flat image, ``[windows, kernel]``."""
    rank = len(image)
    flat: NDArray[Any] = np.zeros((1,) * (2 * rank), np.int64)
    for axis, taken in enumerate(places):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = taken.shape
        flat = flat * image[axis] + taken.reshape(shape)
    return flat.reshape(math.prod(p.shape[0] for p in places), -1)
