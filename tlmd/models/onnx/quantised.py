"""Rewriting of quantised ONNX operators into the usual ones between pairs of QuantizeLinear.

TVM lacks the operators on integers that tools of quantisation write (`QLinearConv` and those of
ONNX Runtime), weights of less than a byte, and scales of blocks. What is written here is what other
tools write ("QDQ"): the lowering makes products of integers of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlmd.models.onnx.rewriting import Operation, Rewriter, Rewriters, Unknown

MICROSOFT = "com.microsoft"
_AXIS_IN_NODES = 13  # the first opset in which scales may be those of channels


def rewriters() -> Rewriters:
    """The rewriters of this module."""
    unary = {"Sigmoid": (), "LeakyRelu": ("alpha",), "Softmax": ("axis",)}
    return {
        ("", "QLinearConv"): _convolution,
        ("", "QLinearMatMul"): _product,
        ("", "ConvInteger"): _integer_convolution,
        ("", "DequantizeLinear"): _dequantize,
        (MICROSOFT, "DequantizeLinear"): _standard,
        (MICROSOFT, "QuantizeLinear"): _standard,
        (MICROSOFT, "QLinearConv"): _convolution,
        (MICROSOFT, "QLinearAdd"): _binary,
        (MICROSOFT, "QLinearMul"): _binary,
        (MICROSOFT, "QLinearConcat"): _concat,
        (MICROSOFT, "QLinearAveragePool"): _pool,
        (MICROSOFT, "QLinearGlobalAveragePool"): _pool,
        (MICROSOFT, "QGemm"): _gemm,
        (MICROSOFT, "MatMulIntegerToFloat"): _product_to_float,
        (MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_product,
        (MICROSOFT, "MatMulNBits"): _packed_product,
        **{(MICROSOFT, f"QLinear{name}"): _unary(name, kept) for name, kept in unary.items()},
    }


def _scalar(operation: Operation, name: str) -> str:
    """A scale or zero point; one that is all of a list is a single number."""
    tensors, writer = operation.writer.tensors, operation.writer
    if name in tensors:
        value = writer.value(name)
        return writer.constant(value.reshape(())) if value.ndim and value.size == 1 else name
    return writer.reshape(name, []) if operation.shape(name) == [1] else name


def _floats(operation: Operation, x: str, scale: str, zero: str, axis: int | None = None) -> str:
    """The floats that integers stand for; `axis` is the one of the scales, if there are several."""
    writer = operation.writer
    scale, zero = (_scalar(operation, name) if name else "" for name in (scale, zero))
    one = not operation.shape(scale)
    if one or writer.opset >= _AXIS_IN_NODES:
        attributes: dict[str, Any] = {} if one or axis is None else {"axis": axis}
        return writer.call("DequantizeLinear", x, scale, *[zero] * bool(zero), **attributes)
    kind = operation.dtype(scale)
    shape = [1] * len(operation.shape(x))
    shape[axis or 0] = -1
    result = writer.cast(x, kind)
    if zero:
        shift = writer.cast(zero, kind)
        result = writer.call("Sub", result, writer.reshape(shift, shape))
    return writer.call("Mul", result, writer.reshape(scale, shape))


def _triple(operation: Operation, place: int, axis: int | None = None) -> str:
    """The floats of a tensor whose scale and zero point follow it among the inputs."""
    x, scale, zero = (operation.input(place + n) for n in range(3))
    return _floats(operation, x, scale, zero, axis)


def _integers(operation: Operation, x: str, place: int) -> list[str]:
    """The integers of floats, with the scale and the zero point at `place` among the inputs."""
    scale, zero = (operation.input(place + n) for n in range(2))
    if not zero:
        zero = operation.writer.constant(np.asarray(0, np.uint8))
    ends = (_scalar(operation, name) for name in (scale, zero))
    return [operation.writer.call("QuantizeLinear", x, *ends)]


def _convolution(operation: Operation) -> Sequence[str] | None:
    attributes, writer = dict(operation.attributes), operation.writer
    if attributes.pop("channels_last", 0):
        return None
    inputs = [_triple(operation, 0), _triple(operation, 3, 0)]
    bias = operation.input(8)
    if bias:
        scales = [operation.input(1), operation.input(4)]
        scale = _product_of(operation, *scales)
        inputs.append(_floats(operation, bias, scale, "", 0))
    return _integers(operation, writer.call("Conv", *inputs, **attributes), 6)


def _product_of(operation: Operation, left: str, right: str) -> str:
    writer = operation.writer
    if left in writer.tensors and right in writer.tensors:
        return writer.constant(writer.value(left).reshape(()) * writer.value(right))
    return writer.call("Mul", _scalar(operation, left), right)


def _product(operation: Operation) -> Sequence[str] | None:
    rows, columns = (len(operation.shape(operation.input(place))) for place in (0, 3))
    if any(len(operation.shape(operation.input(place))) > 1 for place in (1, 4)):
        return None  # a scale for each matrix of several
    left, right = _triple(operation, 0, rows - 2), _triple(operation, 3, columns - 1)
    return _integers(operation, operation.writer.call("MatMul", left, right), 6)


def _integer_convolution(operation: Operation) -> Sequence[str] | None:
    """The convolution of what is above the zero points, with scales of one."""
    writer = operation.writer
    one = writer.constant(np.asarray(1, np.float32))
    x, weight, x_zero, weight_zero = (operation.input(place) for place in range(4))
    scale = one
    if weight_zero and math.prod(operation.shape(weight_zero)) > 1:
        scale = writer.constant(np.ones(operation.shape(weight_zero), np.float32))
    inputs = _floats(operation, x, one, x_zero), _floats(operation, weight, scale, weight_zero, 0)
    result = writer.call("Conv", *inputs, **operation.attributes)
    return [writer.cast(result, np.int32)]


def _standard(operation: Operation) -> Sequence[str] | None:
    """ONNX Runtime's own, from before ONNX had it."""
    kind = operation.node.op_type
    axis = {"axis": operation.attributes["axis"]} if "axis" in operation.attributes else {}
    x, scale, zero = (operation.input(place) for place in range(3))
    if kind == "DequantizeLinear":
        return [_floats(operation, x, scale, zero, axis.get("axis"))]
    if axis and operation.shape(_scalar(operation, scale)):
        inputs = [name for name in (x, scale, zero) if name]
        return [operation.writer.call(kind, *inputs, **axis)]
    return _integers(operation, x, 1)


def _dequantize(operation: Operation) -> Sequence[str] | None:
    """Scales of blocks, and integers of less than a byte."""
    x, scale = (operation.input(place) for place in range(2))
    block = operation.attributes.get("block_size", 0)
    small = x in operation.writer.tensors and operation.writer.value(x).dtype.itemsize == 1
    narrow = small and operation.writer.value(x).dtype not in (np.int8, np.uint8)
    if not block and not (narrow and "int" in str(operation.writer.value(x).dtype)):
        return None
    data, factors = (operation.constant(place).astype(np.float32) for place in range(2))
    given = operation.constant(2)
    shift = np.zeros_like(factors) if given is None else given.astype(np.float32)
    axis = operation.attributes.get("axis", 1) % max(data.ndim, 1)
    if block:
        extent = data.shape[axis]
        factors, shift = (
            np.repeat(v, block, axis).take(range(extent), axis) for v in (factors, shift)
        )
    elif factors.size > 1:
        shape = [-1 if other == axis else 1 for other in range(data.ndim)]
        factors, shift = factors.reshape(shape), shift.reshape(shape)
    result = ((data - shift) * factors).astype(operation.dtype(scale))
    return [operation.writer.constant(result)]


def _binary(operation: Operation) -> Sequence[str] | None:
    kind = operation.node.op_type.removeprefix("QLinear")
    result = operation.writer.call(kind, _triple(operation, 0), _triple(operation, 3))
    return _integers(operation, result, 6)


def _unary(kind: str, kept: Sequence[str]) -> Rewriter:
    def rewriter(operation: Operation) -> Sequence[str] | None:
        attributes = {n: v for n, v in operation.attributes.items() if n in kept}
        if kind == "Softmax" and operation.attributes.get("opset", 13) < _AXIS_IN_NODES:
            return None
        result = operation.writer.call(kind, _triple(operation, 0), **attributes)
        return _integers(operation, result, 3)

    return rewriter


def _concat(operation: Operation) -> Sequence[str] | None:
    places = range(2, len(operation.node.input), 3)
    parts = [_triple(operation, place) for place in places]
    result = operation.writer.call("Concat", *parts, axis=operation.attributes["axis"])
    return _integers(operation, result, 0)


def _pool(operation: Operation) -> Sequence[str] | None:
    attributes = dict(operation.attributes)
    if attributes.pop("channels_last", 0):
        return None
    kind = operation.node.op_type.removeprefix("QLinear")
    result = operation.writer.call(kind, _triple(operation, 0), **attributes)
    return _integers(operation, result, 3)


def _gemm(operation: Operation) -> Sequence[str] | None:
    attributes, writer = operation.attributes, operation.writer
    turned = attributes.get("transB", 0)
    inputs = [_triple(operation, 0), _triple(operation, 3, 0 if turned else 1)]
    bias = operation.input(6)
    if bias:
        scale = _product_of(operation, operation.input(1), operation.input(4))
        scale = writer.scaled(scale, attributes.get("alpha", 1.0), np.float32)
        inputs.append(_floats(operation, bias, scale, "", len(operation.shape(bias)) - 1))
    result = writer.call("Gemm", *inputs, **attributes)
    return _integers(operation, result, 7) if operation.input(7) else [result]


def _product_to_float(operation: Operation) -> Sequence[str] | None:
    """Inputs: both matrices, both scales, both zero points, a bias."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (operation.input(n) for n in range(7))
    left = _floats(operation, a, a_scale, a_zero)
    right = _floats(operation, b, b_scale, b_zero, len(operation.shape(b)) - 1)
    result = operation.writer.call("MatMul", left, right)
    return [operation.writer.call("Add", result, bias) if bias else result]


def _dynamic_product(operation: Operation) -> Sequence[str] | None:
    """The scale of the first matrix is that of its values."""
    from onnx import helper

    a, b, scale, zero, bias = (operation.input(n) for n in range(5))
    writer = operation.writer
    names = [f"{writer.prefix}dynamic_{name}" for name in ("integers", "scale", "zero")]
    writer.nodes.append(helper.make_node("DynamicQuantizeLinear", [a], names))
    left = writer.call("DequantizeLinear", *names)
    right = _floats(operation, b, scale, zero, len(operation.shape(b)) - 1)
    result = writer.call("MatMul", left, right)
    return [writer.call("Add", result, bias) if bias else result]


def _packed_product(operation: Operation) -> Sequence[str] | None:
    """A product with weights that are packed into bytes, in blocks with a scale each."""
    attributes, writer = operation.attributes, operation.writer
    bits, block = attributes.get("bits", 4), attributes["block_size"]
    columns, depth = attributes["N"], attributes["K"]
    blocks = -(-depth // block)
    packed, scales, zeros = (operation.constant(place) for place in (1, 2, 3))
    if operation.input(4) or bits not in (2, 4, 8):
        raise Unknown(operation.node.op_type)
    integers = _unpacked(packed.reshape(columns, blocks, -1), bits)[..., :block]
    if zeros is None:
        zeros = np.full((columns, blocks), 2 ** (bits - 1))
    elif zeros.dtype == np.uint8:
        zeros = _unpacked(zeros.reshape(columns, -1), bits)[:, :blocks]
    factors = scales.reshape(columns, blocks, 1).astype(np.float32)
    shift = zeros.reshape(columns, blocks, 1).astype(np.float32)
    weights = ((integers - shift) * factors).reshape(columns, -1)[:, :depth]
    matrix = writer.constant(weights.T.astype(scales.dtype))
    result = writer.call("MatMul", operation.input(0), matrix)
    return [writer.call("Add", result, bias) if (bias := operation.input(5)) else result]


def _unpacked(x: NDArray[Any], bits: int) -> NDArray[Any]:
    """Integers of so many bits; the lowest of a byte are the first."""
    parts = [(x >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*x.shape[:-1], -1)
