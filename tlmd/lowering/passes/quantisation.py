"""Quantised models (QDQ): their scales as arithmetic, and their products as products of integers.

A QDQ model computes in float32 between pairs of `quantize` and `dequantize`, which only say what
may be stored in eight bits (ONNX, "QuantizeLinear"). `IntegerProducts` moves the scales behind a
convolution or a matrix product, so that it multiplies the integers and its input is stored in bytes
(Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only
inference", CVPR 2018, section 2.2). `SpellOutScales` writes what is left as plain operators, whose
layout TVM can change and which are fused to what is before them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst, IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.lowering.passes.reshapes import order_of
from tlmd.lowering.passes.rewrites import dtype_of, op_name

_QUANTIZE, _DEQUANTIZE = "relax.quantize", "relax.dequantize"
_POOL = "relax.nn.max_pool2d"
_CONVOLUTION, _PRODUCT = "relax.nn.conv2d", "relax.matmul"
_BYTES = {"uint8": 0, "int8": 128}
"""Dtype of the data -> what is added, so that it is an uint8, which CPUs multiply by int8."""
_STORED = ("uint8", "int8", "uint16", "int16")
"""Dtypes that are spelled out, and int32 for biases. Eight-bit floats keep TVM's own loops."""
_TYPICAL = 73.0 * 73.0
"""The product of a typical data and weight, where both are uniform: 73 is the deviation of a byte.
Scales are stored relative to it, so that sums of random bytes become numbers around 1, as checks
of single programs need them."""


@dataclass(frozen=True)
class _Weights:
    """Constant weights: integers, and the scale of each output channel."""

    values: NDArray[Any]
    """`int8`, without a zero point."""

    scales: NDArray[Any]
    """``[channels]`` or ``[1]``."""


@mutator
class IntegerProducts(PyExprMutator):  # type: ignore[misc]
    """Convolutions and matrix products of dequantised data and weights multiply integers."""

    def prepare(self, func: relax.Function) -> None:
        self.values = relax.analysis.get_var2val(func)

    def visit_call_(self, call: relax.Call) -> Any:
        made = None
        if op_name(call) == _CONVOLUTION:
            layouts = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
            made = self._convolution(call) if layouts == ("NCHW", "OIHW") else None
        elif op_name(call) == _PRODUCT:
            made = self._matrix_product(call)
        elif op_name(call) == _QUANTIZE:
            made = self._unchanged(call)
        return super().visit_call_(call) if made is None else made

    def _convolution(self, call: relax.Call) -> Any | None:
        data, weights = self._data(call.args[0]), self._weights(call.args[1], 0)
        if data is None or weights is None:
            return None
        source, scale, zero = data
        attrs = call.attrs
        padding = list(map(int, attrs.padding))
        if zero and any(padding):
            top, left, bottom, right = padding
            width = [0, 0, 0, 0, top, bottom, left, right]
            source = self.builder_.emit(relax.op.nn.pad(source, width, "constant", zero))
            padding = [0, 0, 0, 0]
        sums = relax.op.nn.conv2d(
            source,
            relax.const(weights.values, "int8"),
            strides=list(map(int, attrs.strides)),
            padding=padding,
            dilation=list(map(int, attrs.dilation)),
            groups=int(attrs.groups),
            data_layout=str(attrs.data_layout),
            kernel_layout=str(attrs.kernel_layout),
            out_dtype="int32",
        )
        of_channels = weights.values.sum((1, 2, 3), dtype=np.int64).reshape(1, -1, 1, 1)
        shifted = zero * of_channels if zero else None
        terms = math.prod(weights.values.shape[1:])
        return self._scaled(sums, shifted, scale * weights.scales.reshape(1, -1, 1, 1), terms)

    def _unchanged(self, call: relax.Call) -> Any | None:
        """The bytes, or the largest ones, where they are quantised as before `dequantize`."""
        pool = self._call(call.args[0], _POOL)
        before = self._call(call.args[0] if pool is None else pool.args[0], _DEQUANTIZE)
        if before is None or isinstance(before.args[0], GenericConst):
            return None
        step = _scale_and_zero(before)
        is_same = step == _scale_and_zero(call)
        if step is None or step[0] <= 0 or not is_same:
            return None
        if dtype_of(before.args[0]) != str(call.attrs.out_dtype):
            return None
        source = self.visit_expr(before.args[0])
        return source if pool is None else relax.Call(pool.op, [source], pool.attrs)

    def _matrix_product(self, call: relax.Call) -> Any | None:
        data, weights = self._data(call.args[0]), self._weights(call.args[1], -1)
        if data is None or weights is None or weights.values.ndim != 2:
            return None
        source, scale, zero = data
        sums = relax.op.matmul(source, relax.const(weights.values, "int8"), out_dtype="int32")
        shifted = zero * weights.values.sum(0, dtype=np.int64) if zero else None
        return self._scaled(sums, shifted, scale * weights.scales, len(weights.values))

    def _scaled(
        self, sums: relax.Expr, shifted: Any | None, scales: NDArray[Any], terms: int
    ) -> Any:
        """``(sums - shifted) * scales`` in float32; `terms`: of each sum."""
        scaled = self.builder_.emit(sums)
        if shifted is not None:
            shift = relax.const(shifted.astype("int32"), "int32")
            scaled = self.builder_.emit(relax.op.subtract(scaled, shift))
        scaled = self.builder_.emit(relax.op.astype(scaled, "float32"))
        typical = 1 / (_TYPICAL * math.sqrt(max(terms, 1)))
        scaled = self.builder_.emit(relax.op.multiply(scaled, relax.const(typical, "float32")))
        relative = relax.const((scales / typical).astype("float32"), "float32")
        return relax.op.multiply(scaled, relative)

    def _call(self, expr: relax.Expr, name: str) -> Any | None:
        """The call of this operator that made an expression; None if another one did."""
        value = self.values.get(expr) if isinstance(expr, relax.Var) else expr
        return value if op_name(value) == name else None

    def _data(self, expr: relax.Expr) -> tuple[Any, float, int] | None:
        """The data before `dequantize`, in uint8, with its scale and zero point."""
        call = self._call(expr, _DEQUANTIZE)
        if call is None or isinstance(call.args[0], GenericConst):
            return None
        parameters = _scale_and_zero(call)
        if parameters is None:
            return None
        scale, zero = parameters
        source = self.visit_expr(call.args[0])
        dtype = dtype_of(call.args[0])
        if dtype not in _BYTES:
            return None
        added = _BYTES[dtype]
        if added:
            wide = self.builder_.emit(relax.op.astype(source, "int16"))
            wide = self.builder_.emit(relax.op.add(wide, relax.const(added, "int16")))
            source = self.builder_.emit(relax.op.astype(wide, "uint8"))
        return source, scale, zero + added

    def _weights(self, expr: relax.Expr, channels: int) -> _Weights | None:
        """Weights with one scale for each element of the dimension `channels`, or for all."""
        moved = self._call(expr, "relax.permute_dims")
        call = self._call(expr if moved is None else moved.args[0], _DEQUANTIZE)
        if call is None:
            return None
        values, scale, zero = (_constant(argument) for argument in call.args)
        if values is None or scale is None or zero is None or str(values.dtype) not in _BYTES:
            return None
        axis = int(call.attrs.axis) % max(values.ndim, 1)
        scale, zero = (_along(part, axis, values.ndim) for part in (scale, zero))
        integers = values.astype(np.int16) - zero.astype(np.int16)
        if moved is not None:
            order = order_of(moved, integers.ndim)
            integers, scale = (
                np.transpose(part, order) if part.ndim else part for part in (integers, scale)
            )
        if scale.ndim and scale.size != scale.shape[channels]:
            return None
        if integers.min(initial=0) < -128 or integers.max(initial=0) > 127:
            return None
        return _Weights(np.ascontiguousarray(integers.astype(np.int8)), scale.reshape(-1))


@mutator
class SpellOutScales(PyExprMutator):  # type: ignore[misc]
    """Replaces `quantize` and `dequantize` by arithmetic; those of constants are folded."""

    def visit_call_(self, call: relax.Call) -> Any:
        call = super().visit_call_(call)
        if op_name(call) not in (_QUANTIZE, _DEQUANTIZE):
            return call
        scale, zero = (_constant(argument) for argument in call.args[1:])
        if scale is None or zero is None:
            return call
        out, is_back = str(call.attrs.out_dtype), op_name(call) == _DEQUANTIZE
        if (dtype_of(call.args[0]) not in (*_STORED, "int32")) if is_back else (out not in _STORED):
            return call
        rank = int(call.args[0].ty.ndim)
        axis = int(call.attrs.axis) % max(rank, 1)
        scale, zero = (_along(part, axis, rank).astype("float64") for part in (scale, zero))
        if is_back:
            return self._dequantized(call.args[0], scale, zero, out)
        return self._quantized(call.args[0], scale, zero, out)

    def _dequantized(
        self, source: relax.Expr, scale: NDArray[Any], zero: NDArray[Any], out: str
    ) -> Any:
        constant = _constant(source)
        if constant is not None:
            return relax.const(((constant - zero) * scale).astype(out), out)
        value = self.builder_.emit(relax.op.astype(source, "float32"))
        if zero.any():
            value = self.builder_.emit(relax.op.subtract(value, _number(zero)))
        value = relax.op.multiply(value, _number(scale))
        return value if out == "float32" else relax.op.astype(self.builder_.emit(value), out)

    def _quantized(
        self, source: relax.Expr, scale: NDArray[Any], zero: NDArray[Any], out: str
    ) -> Any:
        limits = np.iinfo(out)
        value = source
        if dtype_of(value) != "float32":
            value = self.builder_.emit(relax.op.astype(value, "float32"))
        value = self.builder_.emit(relax.op.multiply(value, _number(1 / scale)))
        value = self.builder_.emit(relax.op.round(value))
        if zero.any():
            value = self.builder_.emit(relax.op.add(value, _number(zero)))
        low, high = (relax.const(float(limit), "float32") for limit in (limits.min, limits.max))
        value = self.builder_.emit(relax.op.maximum(low, value))
        value = self.builder_.emit(relax.op.minimum(high, value))
        return relax.op.astype(value, out)


def is_quantised(module: IRModule) -> bool:
    """Whether a model has pairs of `quantize` and `dequantize`."""
    dequantizes = False

    def visit(expr: relax.Expr) -> None:
        nonlocal dequantizes
        dequantizes = dequantizes or op_name(expr) == _DEQUANTIZE

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return dequantizes


def _constant(expr: relax.Expr) -> NDArray[Any] | None:
    return expr.value.numpy() if isinstance(expr, GenericConst) else None


def _scale_and_zero(call: relax.Call) -> tuple[float, int] | None:
    """Scale and zero point of a `quantize` or `dequantize` with one of each; None for others."""
    scale, zero = (_constant(argument) for argument in call.args[1:])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return None
    return float(scale.item()), int(zero.item())


def _along(values: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """A vector along one of `rank` dimensions; a single number stays as it is."""
    if values.size == 1:
        return values.reshape(())
    return values.reshape([-1 if index == axis else 1 for index in range(rank)])


def _number(values: NDArray[Any]) -> Any:
    return relax.const(values.astype("float32"), "float32")
