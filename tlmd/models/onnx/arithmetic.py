"""Rewriting of ONNX's arithmetic, comparisons and normalisations that TVM imports wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tlmd.models.onnx.node_writer import NodeWriter
from tlmd.models.onnx.rewriting import Operation, Rewriters

LAYER_NORM = 17  # the first opset with this normalisation


def rewriters() -> Rewriters:
    """The rewriters of this module."""
    return {
        ("", "ArgMax"): _extreme,
        ("", "ArgMin"): _extreme,
        ("", "Equal"): _equal,
        ("", "Pow"): _power,
        ("", "BatchNormalization"): _batch_norm,
        ("", "LayerNormalization"): _layer_norm,
    }


def _extreme(operation: Operation) -> Sequence[str] | None:
    """TVM starts from a signed number, which unsigned elements take for a large one."""
    x = operation.input(0)
    dtype = np.dtype(operation.dtype(x))
    if dtype.kind != "u" or dtype.itemsize > 4:
        return None
    wide = operation.writer.cast(x, np.int32 if dtype.itemsize < 4 else np.int64)
    return [operation.writer.call(operation.node.op_type, wide, **operation.attributes)]


def _equal(operation: Operation) -> Sequence[str] | None:
    """LLVM's comparison of booleans, as TVM writes it, needs integers."""
    left, right = operation.input(0), operation.input(1)
    if operation.dtype(left) != np.bool_:
        return None
    wide = [operation.writer.cast(x, np.int32) for x in (left, right)]
    return [operation.writer.call("Equal", *wide)]


def _power(operation: Operation) -> Sequence[str] | None:
    """TVM has powers of floats only, with exponents of the same type."""
    writer, (base, exponent) = operation.writer, operation.node.input
    dtype, other = operation.dtype(base), operation.dtype(exponent)
    if np.dtype(dtype).kind not in "iu":
        same = dtype == other
        return None if same else [writer.call("Pow", base, writer.cast(exponent, dtype))]
    if exponent in writer.tensors and writer.value(exponent).size == 1:
        number = float(writer.value(exponent).item())
        if number in (2, 3) and writer.value(exponent).ndim <= len(operation.shape(base)):
            square = writer.call("Mul", base, base)
            return [square if number == 2 else writer.call("Mul", square, base)]
    # In the precision of ONNX Runtime, which is exact for results below 2**53.
    wide = [writer.cast(x, np.float64) for x in (base, exponent)]
    return [writer.cast(writer.call("Pow", *wide), dtype)]


def _batch_norm(operation: Operation) -> Sequence[str] | None:
    """In training, the statistics are those of the batch; TVM mixes them by another formula."""
    attributes, writer = operation.attributes, operation.writer
    if not attributes.get("training_mode"):
        return None
    x, scale, shift, mean, variance = operation.node.input
    shape, dtype = operation.shape(x), operation.dtype(x)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    channels = [1, shape[1]] + [1] * (len(shape) - 2)
    wide = np.float32 if dtype == np.float16 else dtype

    def widened(name: str) -> str:
        return name if operation.dtype(name) == wide else writer.cast(name, wide)

    inputs = widened(x)
    centre = writer.reduce("ReduceMean", inputs, axes)
    distance = writer.call("Sub", inputs, centre)
    spread = writer.reduce("ReduceMean", writer.call("Mul", distance, distance), axes)
    epsilon = writer.constant(np.asarray(attributes.get("epsilon", 1e-5), wide))
    deviation = writer.call("Sqrt", writer.call("Add", spread, epsilon))
    result = writer.call("Div", distance, deviation)
    result = writer.call("Mul", result, writer.reshape(widened(scale), channels))
    result = writer.call("Add", result, writer.reshape(widened(shift), channels))
    momentum = attributes.get("momentum", 0.9)
    running = [result if wide == dtype else writer.cast(result, dtype)]
    for before, now in ((mean, centre), (variance, spread)):
        kind = operation.dtype(before)
        now = writer.reshape(now if kind == wide else writer.cast(now, kind), [shape[1]])
        kept = writer.constant(np.asarray(momentum, kind))
        new = writer.constant(np.asarray(1 - momentum, kind))
        parts = writer.call("Mul", before, kept), writer.call("Mul", now, new)
        running.append(writer.call("Add", *parts))
    return running


def _layer_norm(operation: Operation) -> Sequence[str] | None:
    """TVM wants scale and shift in the shape of what is normalised; ONNX broadcasts them."""
    writer, (x, *weights) = operation.writer, operation.node.input
    shape = operation.shape(x)
    axis = operation.attributes.get("axis", -1) % len(shape)
    weights = [name for name in weights if name]
    full = all(operation.shape(name) == shape[axis:] for name in weights)
    if operation.output(1) or (full and writer.opset >= LAYER_NORM):
        return None
    if writer.opset >= LAYER_NORM:
        size = writer.constant(np.asarray(shape[axis:], np.int64))
        weights = [
            name if operation.shape(name) == shape[axis:] else writer.call("Expand", name, size)
            for name in weights
        ]
    axes, epsilon = list(range(axis, len(shape))), operation.attributes.get("epsilon", 1e-5)
    return [layer_norm(writer, x, weights, axes, operation.dtype(x), epsilon)]


def layer_norm(
    writer: NodeWriter, x: str, weights: Sequence[str], axes: list[int], dtype: Any, epsilon: float
) -> str:
    """A LayerNormalization over the last dimensions; spelled out in old files."""
    if writer.opset >= LAYER_NORM:
        return writer.call("LayerNormalization", x, *weights, axis=axes[0], epsilon=epsilon)
    half = dtype == np.float16
    wide = writer.cast(x, np.float32) if half else x
    centred = writer.call("Sub", wide, writer.reduce("ReduceMean", wide, axes))
    spread = writer.reduce("ReduceMean", writer.call("Mul", centred, centred), axes)
    more = writer.constant(np.asarray(epsilon, np.float32 if half else dtype))
    result = writer.call("Div", centred, writer.call("Sqrt", writer.call("Add", spread, more)))
    result = writer.cast(result, dtype) if half else result
    for kind, name in zip(("Mul", "Add"), weights, strict=False):
        result = writer.call(kind, result, name)
    return result
