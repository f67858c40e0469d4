"""Graph rewrites that keep reshapes and transposes ("moves") out of the loops.

If a reshape stands between a matmul and the arithmetic after it, TVM cannot fuse the two into one
function. The rewrites here put such moves after the arithmetic, where successive moves can be
combined, removed or turned into views.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.lowering.passes.rewrites import dtype_of, op_name

_NUMPY = {"float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"}
_UNARY = {
    *("relax.nn.gelu", "relax.nn.gelu_tanh", "relax.nn.relu", "relax.nn.relu6", "relax.nn.silu"),
    *("relax.sigmoid", "relax.tanh", "relax.erf", "relax.exp", "relax.sqrt", "relax.rsqrt"),
    *("relax.negative", "relax.abs", "relax.astype", "relax.round", "relax.square"),
}
_BINARY = {
    f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")
}


def static_shape(expr: relax.Expr) -> tuple[int, ...] | None:
    """The shape of a tensor expression; None if it is not known."""
    shape = getattr(expr.ty, "shape", None)
    if shape is None or not all(isinstance(s, tirx.IntImm) for s in shape):
        return None
    return tuple(int(s) for s in shape)


def order_of(call: relax.Call, rank: int) -> list[int]:
    """The axes of a ``permute_dims`` call."""
    axes = call.attrs.axes
    return [int(a) for a in axes] if axes is not None else list(range(rank))[::-1]


def _permuted_back(expr: relax.Expr, order: list[int]) -> Any:
    """The constant that a transpose by `order` makes `expr`; None for all else."""
    if not _is_bias(expr) or dtype_of(expr) not in _NUMPY or expr.ty.ndim != len(order):
        return None
    values = expr.value.numpy().transpose(np.argsort(order))
    return relax.const(values.copy(), dtype_of(expr))


def _is_bias(expr: relax.Expr) -> bool:
    """Whether an expression is a constant with a value for each channel."""
    shape = static_shape(expr) or (1,)
    return isinstance(expr, GenericConst) and max(shape) == math.prod(shape) > 1


def _is_alike(*pairs: Any) -> bool:
    """Whether both expressions of each pair have the same shape."""
    return all(static_shape(one) == static_shape(other) for one, other in pairs)


@mutator
class SpellOutMoves(PyExprMutator):  # type: ignore[misc]
    """Replaces `squeeze` and `expand_dims` by reshapes.

    ConvertLayout ends the process at a `squeeze` that has negative axes or none.
    """

    def visit_call_(self, call: relax.Call) -> Any:
        call = super().visit_call_(call)
        shape = static_shape(call)
        if op_name(call) not in ("relax.squeeze", "relax.expand_dims") or shape is None:
            return call
        # A 0 in the new shape would mean "as before".
        return call if 0 in shape else relax.op.reshape(call.args[0], shape)


@mutator
class FoldMoves(PyExprMutator):  # type: ignore[misc]
    """Computes transposes and reshapes of weights in numpy. TVM would compile a kernel for each."""

    def visit_call_(self, call: relax.Call) -> Any:
        call = super().visit_call_(call)
        name = op_name(call)
        if name not in ("relax.permute_dims", "relax.reshape"):
            return call
        source = call.args[0]
        if isinstance(source, relax.Var):
            source = self.lookup_binding(source)
        shape = static_shape(call)
        # numpy has no bfloat16 and float8; FoldConstant computes those.
        if not isinstance(source, GenericConst) or shape is None or dtype_of(call) not in _NUMPY:
            return call
        values = source.value.numpy()
        if name == "relax.reshape":
            values = values.reshape(shape)
        else:
            values = np.ascontiguousarray(values.transpose(order_of(call, values.ndim)))
        return relax.const(values, dtype_of(call))


@mutator
class SinkMoves(PyExprMutator):  # type: ignore[misc]
    """Rewrites `op(move(x))` to `move(op(x))` for element-wise operators, and combines moves.

    A transpose that keeps the order of the elements becomes a reshape, which costs nothing.
    """

    def visit_call_(self, call: relax.Call) -> Any:
        call = super().visit_call_(call)
        name = op_name(call)
        if static_shape(call) is None:
            return call
        if name == "relax.broadcast_to" and static_shape(call.args[0]) == static_shape(call):
            return call.args[0]
        if name == "relax.reshape":
            return self._reshape(call.args[0], static_shape(call))
        if name == "relax.permute_dims":
            return self._permute(call.args[0], order_of(call, int(call.ty.ndim)))
        if name in _UNARY:
            return self._unary(call)
        if name in _BINARY:
            return self._binary(call)
        return call

    def _value(self, expr: relax.Expr) -> Any:
        while isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        return expr

    def _reshaped(self, expr: relax.Expr) -> Any:
        """The operand of the reshape `expr`; None if `expr` is not a reshape."""
        value = self._value(expr)
        if op_name(value) != "relax.reshape" or static_shape(value.args[0]) is None:
            return None
        return value.args[0]

    def _permuted(self, expr: relax.Expr) -> tuple[Any, list[int]]:
        """The operand and the axes of the transpose `expr`; (None, []) if it is not a transpose."""
        value = self._value(expr)
        if op_name(value) != "relax.permute_dims":
            return None, []
        return value.args[0], order_of(value, int(value.ty.ndim))

    def _reshape(self, expr: relax.Expr, shape: Any) -> Any:
        source = self._reshaped(expr)
        source = expr if source is None else source
        return source if static_shape(source) == shape else relax.op.reshape(source, shape)

    def _permute(self, expr: relax.Expr, order: list[int]) -> Any:
        source, inner = self._permuted(expr)
        if source is not None:
            expr, order = source, [inner[axis] for axis in order]
        shape = static_shape(expr)
        if order == sorted(order):
            return expr
        moved = [axis for axis in order if shape is None or shape[axis] != 1]
        if shape is not None and moved == sorted(moved):
            return self._reshape(expr, tuple(shape[axis] for axis in order))
        return relax.op.permute_dims(expr, order)

    def _unary(self, call: relax.Call) -> Any:
        source = self._reshaped(call.args[0])
        if source is not None:
            return relax.op.reshape(self._redo(call, [source]), static_shape(call))
        source, order = self._permuted(call.args[0])
        return call if source is None else self._permute(self._redo(call, [source]), order)

    def _binary(self, call: relax.Call) -> Any:
        rewritten = self._before_transposes(call)
        if rewritten is not None:
            return rewritten
        left, right = map(self._reshaped, call.args)
        if left is not None and right is not None and _is_alike((left, right), call.args):
            return relax.op.reshape(self._redo(call, [left, right]), static_shape(call))
        for index in (0, 1):
            source = self._reshaped(call.args[index])
            # Only to fewer dimensions; otherwise two reshaped operands could be rewritten forever.
            if source is None:
                continue
            if source.ty.ndim >= call.ty.ndim and not _is_bias(call.args[1 - index]):
                continue
            if static_shape(call.args[index]) != static_shape(call):
                continue
            other = self._view(call.args[1 - index], static_shape(source) or (), static_shape(call))
            if other is not None:
                args = [source, other] if index == 0 else [other, source]
                return relax.op.reshape(self._redo(call, args), static_shape(call))
        return call

    def _before_transposes(self, call: relax.Call) -> Any:
        """Apply the operator before the transposes of its operands; None if these differ."""
        (left, order), (right, other) = map(self._permuted, call.args)
        if left is not None and right is not None and order == other:
            return self._permute(self._redo(call, [left, right]), order)
        if left is not None and static_shape(call.args[1]) == ():
            return self._permute(self._redo(call, [left, call.args[1]]), order)
        if right is not None and static_shape(call.args[0]) == ():
            return self._permute(self._redo(call, [call.args[0], right]), other)
        if left is not None and (values := _permuted_back(call.args[1], order)) is not None:
            return self._permute(self._redo(call, [left, values]), order)
        if right is not None and (values := _permuted_back(call.args[0], other)) is not None:
            return self._permute(self._redo(call, [values, right]), other)
        return None

    def _view(self, other: Any, inner: tuple[int, ...], outer: Any) -> Any:
        """`other`, reshaped to broadcast with shape `inner` as it does with `outer`; else None."""
        shape = static_shape(other)
        if shape is None:
            return None
        if shape == outer:
            return self._emit(self._reshape(other, inner))
        common = 0
        while common < min(len(inner), len(outer)) and inner[-1 - common] == outer[-1 - common]:
            common += 1
        kept, rest = (shape[-common:], shape[:-common]) if common else ((), shape)
        if any(extent != 1 for extent in rest):
            return None
        return self._emit(self._reshape(other, kept))

    def _redo(self, call: relax.Call, args: list[Any]) -> Any:
        """The same operator with other arguments."""
        return self._emit(relax.Call(call.op, args, call.attrs))

    def _emit(self, expr: relax.Expr) -> Any:
        return self.builder_.emit(expr) if isinstance(expr, relax.Call) else expr
