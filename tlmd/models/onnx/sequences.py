"""Rewriting of ONNX's operators on groups and sequences that TVM lacks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tlmd.models.onnx.rewriting import Operation, Rewriters

_OF_CHANNELS = 21  # the first opset in which groups have scales of channels


def rewriters() -> Rewriters:
    """The rewriters of this module."""
    return {("", "ReverseSequence"): _reverse, ("", "GroupNormalization"): _group_norm}


def _reverse(operation: Operation) -> Sequence[str] | None:
    """Each text is read from its own end; what is after it stays."""
    writer, (x, lengths) = operation.writer, operation.node.input
    shape = operation.shape(x)
    time, batch = (operation.attributes.get(f"{n}_axis", d) for n, d in (("time", 0), ("batch", 1)))
    along = [-1 if axis == time else 1 for axis in range(len(shape))]
    across = [-1 if axis == batch else 1 for axis in range(len(shape))]
    places = writer.constant(np.arange(shape[time]).reshape(along))
    ends = writer.reshape(lengths, across)
    one = writer.constant(np.asarray(1))
    mirrored = writer.call("Sub", writer.call("Sub", ends, one), places)
    taken = writer.call("Where", writer.call("Less", places, ends), mirrored, places)
    whole = writer.call("Expand", taken, writer.constant(np.asarray(shape)))
    return [writer.call("GatherElements", x, whole, axis=time)]


def _group_norm(operation: Operation) -> Sequence[str] | None:
    """As a function of ONNX, it is a chain of shapes that TVM's importer cannot follow."""
    writer, (x, scale, shift) = operation.writer, operation.node.input
    shape, dtype = operation.shape(x), operation.dtype(x)
    groups = operation.attributes["num_groups"]
    wide = writer.cast(x, np.float32) if dtype == np.float16 else x
    kind = np.float32 if dtype == np.float16 else dtype
    apart = writer.reshape(wide, [shape[0], groups, -1])
    centred = writer.call("Sub", apart, writer.reduce("ReduceMean", apart, [2]))
    spread = writer.reduce("ReduceMean", writer.call("Mul", centred, centred), [2])
    epsilon = writer.constant(np.asarray(operation.attributes.get("epsilon", 1e-5), kind))
    result = writer.call("Div", centred, writer.call("Sqrt", writer.call("Add", spread, epsilon)))
    sizes = [1, groups, 1]
    if operation.shape(scale) == [shape[1]] and writer.opset >= _OF_CHANNELS:
        result, sizes = writer.reshape(result, shape), [1, shape[1]] + [1] * (len(shape) - 2)
    for name, weights in (("Mul", scale), ("Add", shift)):
        weights = writer.cast(weights, kind) if dtype == np.float16 else weights
        result = writer.call(name, result, writer.reshape(weights, sizes))
    result = writer.reshape(result, shape)
    return [writer.cast(result, dtype) if dtype == np.float16 else result]
