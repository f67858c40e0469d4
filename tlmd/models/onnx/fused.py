"""Rewriting of operators that ONNX Runtime's optimiser writes, into those that they stand for.

TVM knows some of their names, but not all of their inputs and outputs, and lacks the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tlmd.models.onnx.arithmetic import layer_norm
from tlmd.models.onnx.rewriting import Operation, Rewriters

MICROSOFT = "com.microsoft"


def rewriters() -> Rewriters:
    """The rewriters of this module."""
    return {
        (MICROSOFT, "FusedMatMul"): _product,
        (MICROSOFT, "TransposeMatMul"): _product,
        (MICROSOFT, "FusedConv"): _convolution,
        (MICROSOFT, "FusedGemm"): _gemm,
        (MICROSOFT, "BiasGelu"): _gelu,
        (MICROSOFT, "FastGelu"): _gelu,
        (MICROSOFT, "QuickGelu"): _quick_gelu,
        (MICROSOFT, "BiasSplitGelu"): _split_gelu,
        (MICROSOFT, "BiasAdd"): _bias_add,
        (MICROSOFT, "SkipLayerNormalization"): _skip_norm,
        (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_norm,
        (MICROSOFT, "EmbedLayerNormalization"): _embedding,
        (MICROSOFT, "SimplifiedLayerNormalization"): _simple_norm,
        ("", "SimplifiedLayerNormalization"): _simple_norm,
        (MICROSOFT, "GroupNorm"): _group_norm,
        (MICROSOFT, "SkipGroupNorm"): _group_norm,
    }


def _product(operation: Operation) -> Sequence[str] | None:
    attributes, writer = operation.attributes, operation.writer
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        return None
    inputs = []
    for place, side in enumerate("AB"):
        name = operation.input(place)
        rank = len(operation.shape(name))
        if attributes.get(f"trans{side}") and rank > 1:
            order = [*range(rank - 2), rank - 1, rank - 2]
            name = writer.call("Transpose", name, perm=order)
        inputs.append(name)
    result = writer.call("MatMul", *inputs)
    dtype = operation.dtype(operation.input(0))
    return [writer.scaled(result, attributes.get("alpha", 1.0), dtype)]


def _activated(operation: Operation, x: str, numbers: Sequence[float]) -> str | None:
    """The activation that an attribute names, with its parameters."""
    kind, writer = operation.attributes.get("activation", ""), operation.writer
    if kind in ("", "Relu", "Sigmoid", "Tanh"):
        return writer.call(kind, x) if kind else x
    if kind == "LeakyRelu":
        return writer.call(kind, x, alpha=numbers[0])
    if kind == "HardSigmoid":
        return writer.call(kind, x, alpha=numbers[0], beta=numbers[1])
    if kind == "Clip":
        dtype = operation.dtype(operation.input(0))
        return writer.call(kind, x, *(writer.constant(np.asarray(n, dtype)) for n in numbers))
    return None


def _convolution(operation: Operation) -> Sequence[str] | None:
    attributes, writer = dict(operation.attributes), operation.writer
    numbers = attributes.pop("activation_params", ())
    attributes.pop("activation", None)
    inputs = [operation.input(place) for place in range(3)]
    result = writer.call("Conv", *inputs[: 3 if inputs[2] else 2], **attributes)
    if operation.input(3):
        result = writer.call("Add", result, operation.input(3))
    activated = _activated(operation, result, numbers)
    return None if activated is None else [activated]


def _gemm(operation: Operation) -> Sequence[str] | None:
    attributes = operation.attributes
    kept = {n: v for n, v in attributes.items() if not n.startswith("activation")}
    numbers = [
        attributes[name]
        for name in ("activation_alpha", "activation_beta", "activation_gamma")
        if name in attributes
    ]
    result = operation.writer.call("Gemm", *operation.node.input, **kept)
    activated = _activated(operation, result, numbers)
    return None if activated is None else [activated]


def _gelu(operation: Operation) -> Sequence[str] | None:
    """`BiasGelu` is exact, `FastGelu` has a hyperbolic tangent; the bias is optional there."""
    writer, (x, bias) = operation.writer, (operation.input(0), operation.input(1))
    dtype = operation.dtype(x)
    x = writer.call("Add", x, bias) if bias else x
    if operation.node.op_type == "BiasGelu":
        return [_times_half(operation, x, writer.call("Erf", _times(operation, x, 0.5**0.5)))]
    cube = writer.call("Mul", writer.call("Mul", x, x), x)
    inner = writer.call("Add", x, writer.scaled(cube, 0.044715, dtype))
    curve = writer.call("Tanh", writer.scaled(inner, (2 / np.pi) ** 0.5, dtype))
    return [_times_half(operation, x, curve)]


def _times(operation: Operation, x: str, factor: float) -> str:
    return operation.writer.scaled(x, factor, operation.dtype(operation.input(0)))


def _times_half(operation: Operation, x: str, curve: str) -> str:
    """``x * (1 + curve) / 2``."""
    writer = operation.writer
    one = writer.constant(np.asarray(1, operation.dtype(operation.input(0))))
    return writer.call("Mul", _times(operation, x, 0.5), writer.call("Add", curve, one))


def _quick_gelu(operation: Operation) -> Sequence[str] | None:
    x, writer = operation.input(0), operation.writer
    alpha = operation.attributes.get("alpha", 1.702)
    return [writer.call("Mul", x, writer.call("Sigmoid", _times(operation, x, alpha)))]


def _split_gelu(operation: Operation) -> Sequence[str] | None:
    """One half of the last dimension times the GELU of the other."""
    x, writer = operation.input(0), operation.writer
    half = operation.shape(x)[-1] // 2
    left, right = writer.split(writer.call("Add", x, operation.input(1)), [half, half])
    curve = writer.call("Erf", _times(operation, right, 0.5**0.5))
    return [writer.call("Mul", left, _times_half(operation, right, curve))]


def _bias_add(operation: Operation) -> Sequence[str] | None:
    total = operation.writer.call("Add", operation.input(0), operation.input(1))
    return [operation.writer.call("Add", total, operation.input(2))]


def _skip_norm(operation: Operation) -> Sequence[str] | None:
    """A normalisation of a sum; the sum is the fourth output."""
    if operation.output(1) or operation.output(2):
        return None
    writer = operation.writer
    simple = operation.node.op_type == "SkipSimplifiedLayerNormalization"
    x, skip, scale = (operation.input(place) for place in range(3))
    shift = "" if simple else operation.input(3)
    bias = operation.input(3 if simple else 4)
    total = writer.call("Add", x, skip)
    total = writer.call("Add", total, bias) if bias else total
    epsilon = operation.attributes.get("epsilon", 1e-12)
    if simple:
        result = _root_mean_square(operation, total, scale, epsilon)
    else:
        weights = [scale, shift] if shift else [scale]
        rank = len(operation.shape(x))
        result = layer_norm(writer, total, weights, [rank - 1], operation.dtype(x), epsilon)
    return [result, "", "", total]


def _root_mean_square(operation: Operation, x: str, scale: str, epsilon: float) -> str:
    """`x` over the root of its mean square along the last dimension, times a scale."""
    writer, dtype = operation.writer, operation.dtype(operation.input(0))
    rank = len(operation.shape(operation.input(0)))
    wide = x if dtype == np.float32 else writer.cast(x, np.float32)
    mean = writer.reduce("ReduceMean", writer.call("Mul", wide, wide), [rank - 1])
    mean = writer.call("Add", mean, writer.constant(np.asarray(epsilon, np.float32)))
    result = writer.call("Div", wide, writer.call("Sqrt", mean))
    result = result if dtype == np.float32 else writer.cast(result, dtype)
    return writer.call("Mul", result, scale)


def _simple_norm(operation: Operation) -> Sequence[str] | None:
    x, scale = operation.input(0), operation.input(1)
    axis = operation.attributes.get("axis", -1)
    if operation.output(1) or axis not in (-1, len(operation.shape(x)) - 1):
        return None
    epsilon = operation.attributes.get("epsilon", 1e-5)
    return [_root_mean_square(operation, x, scale, epsilon)]


def _embedding(operation: Operation) -> Sequence[str] | None:
    """The sum of rows of tables, normalised. Outputs: that, the numbers of tokens, the sum."""
    writer = operation.writer
    tokens, kinds, words, places, types, scale, shift, mask, given = (
        operation.input(place) for place in range(9)
    )
    batch, length = operation.shape(tokens)
    rows: Any = np.broadcast_to(np.arange(length), (batch, length))
    total = writer.call(
        "Add",
        writer.call("Gather", words, tokens, axis=0),
        writer.call("Gather", places, given or writer.constant(rows), axis=0),
    )
    if kinds:
        total = writer.call("Add", total, writer.call("Gather", types, kinds, axis=0))
    epsilon = operation.attributes.get("epsilon", 1e-12)
    result = layer_norm(writer, total, [scale, shift], [2], operation.dtype(words), epsilon)
    counts = writer.constant(np.zeros(batch, np.int32))
    if mask and operation.output(1):
        counts = writer.reduce("ReduceSum", mask, [1], False)
    return [result, counts, total]


def _group_norm(operation: Operation) -> Sequence[str] | None:
    """Groups of channels, which are last; a SiLU may follow."""
    attributes, writer = operation.attributes, operation.writer
    x, scale, shift = (operation.input(place) for place in range(3))
    shape, dtype = operation.shape(x), operation.dtype(x)
    if not attributes.get("channels_last", 1):
        return None
    total = x
    for name in operation.node.input[3:]:
        rank = len(operation.shape(name))
        added = name if rank != 2 else writer.reshape(name, [shape[0], 1, 1, shape[-1]])
        total = writer.call("Add", total, added)
    groups = attributes["groups"]
    wide = total if dtype == np.float32 else writer.cast(total, np.float32)
    split = writer.reshape(wide, [shape[0], -1, groups, shape[-1] // groups])
    centred = writer.call("Sub", split, writer.reduce("ReduceMean", split, [1, 3]))
    spread = writer.reduce("ReduceMean", writer.call("Mul", centred, centred), [1, 3])
    epsilon = writer.constant(np.asarray(attributes.get("epsilon", 1e-5), np.float32))
    result = writer.call("Div", centred, writer.call("Sqrt", writer.call("Add", spread, epsilon)))
    result = writer.reshape(result, shape)
    for kind, name in (("Mul", scale), ("Add", shift)):
        weights = name if operation.dtype(name) == np.float32 else writer.cast(name, np.float32)
        result = writer.call(kind, result, weights)
    if attributes.get("activation"):
        result = writer.call("Mul", result, writer.call("Sigmoid", result))
    result = result if dtype == np.float32 else writer.cast(result, dtype)
    return [result, total] if operation.output(1) else [result]
