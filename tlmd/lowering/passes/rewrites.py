"""Graph rewrites that TVM's own passes lack. They run before operators become loops.

They fold batch normalisation in numpy (TVM would compile one kernel per constant), replace
operators whose layout TVM cannot convert, and replace functions that LLVM calls once per element.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax, te, tirx, topi, transform
from tvm.ir import GenericConst, IRModule, Op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.alternatives.attention.softmax import LOG2_E, power_of_two

_MOST_EXPONENT = 126.0
_CONVOLUTIONS = {f"relax.nn.{name}" for name in ("conv1d", "conv2d", "conv3d", "conv2d_transpose")}


def apply(mutators: list[type[Any]]) -> Any:
    """A module pass that applies each of the `mutators` to all Relax functions."""

    def rewrite(mod: IRModule, _ctx: Any) -> IRModule:
        for kind in mutators:
            for var, func in mod.functions_items():
                if isinstance(func, relax.Function):
                    visitor = kind(mod)
                    if hasattr(visitor, "prepare"):
                        visitor.prepare(func)
                    visitor.builder_.update_func(var, visitor.visit_expr(func))
                    mod = visitor.builder_.get()
        return mod

    return transform.module_pass(rewrite, opt_level=0, name="TlmdRewrites")


def op_name(call: relax.Expr) -> str:
    """The name of the called operator; empty if `call` is not a call of an operator."""
    op = getattr(call, "op", None)
    return str(op.name) if isinstance(op, Op) else ""


def dtype_of(expr: relax.Expr) -> str:
    """The dtype of a tensor expression."""
    return str(expr.ty.dtype.dtype if hasattr(expr.ty.dtype, "dtype") else expr.ty.dtype)


def factor_of(value: relax.Expr) -> float | None:
    """The number by which `value` is multiplied, if it is a product with a number."""
    name = op_name(value)
    if name not in ("relax.multiply", "relax.divide"):
        return None
    number = value.args[1]
    if not isinstance(number, GenericConst) or number.value.numpy().size != 1:
        return None
    factor = float(number.value.numpy().reshape(()))
    return factor if name == "relax.multiply" else 1 / (factor or math.inf)


def has_constant_weights(call: relax.Call, data: str, kernel: str) -> bool:
    """Whether a convolution has constant weights in float32, and these layouts."""
    layouts = (str(call.attrs.data_layout), str(call.attrs.kernel_layout))
    if layouts != (data, kernel) or str(call.attrs.out_layout) not in (data, ""):
        return False
    return isinstance(call.args[1], GenericConst) and dtype_of(call.args[1]) == "float32"


def uses_of(func: relax.Function) -> Counter[Any]:
    """How often each variable of a Relax function is used."""
    uses: Counter[Any] = Counter()

    def count(expr: relax.Expr) -> None:
        fields = getattr(expr, "args", ()) if isinstance(expr, relax.Call) else ()
        fields = expr.fields if isinstance(expr, relax.Tuple) else fields
        if isinstance(expr, relax.SeqExpr):
            named = [b.value for block in expr.blocks for b in block.bindings]
            fields = [expr.body, *named]  # one variable may be another name of a second one
        uses.update(field for field in fields if isinstance(field, relax.Var))

    relax.analysis.post_order_visit(func, count)
    return uses


@mutator
class FoldNormalisation(PyExprMutator):  # type: ignore[misc]
    """Folds batch normalisation into the convolution before it, or into a multiply and an add."""

    def prepare(self, func: relax.Function) -> None:
        self.values = relax.analysis.get_var2val(func)
        self.uses = uses_of(func)

    def _value(self, expr: relax.Expr) -> Any:
        return self.values.get(expr) if isinstance(expr, relax.Var) else expr

    def visit_tuple_getitem_(self, get: relax.TupleGetItem) -> Any:
        call = self._value(get.tuple_value)
        if get.index != 0 or op_name(call) != "relax.nn.batch_norm":
            return super().visit_tuple_getitem_(get)
        if not all(isinstance(c, GenericConst) for c in call.args[1:]):
            return super().visit_tuple_getitem_(get)
        gamma, beta, mean, variance = (c.value.numpy().astype("float64") for c in call.args[1:])
        scale = (gamma if call.attrs.scale else 1.0) / np.sqrt(variance + float(call.attrs.epsilon))
        shift = (beta if call.attrs.center else 0.0) - mean * scale
        data, axis = call.args[0], int(call.attrs.axis)
        dtype, rank = dtype_of(data), int(data.ty.ndim)
        folded = self._fold(data, scale)
        if folded is None:
            scaling = relax.const(_along(scale, axis, rank).astype(dtype), dtype)
            folded = relax.op.multiply(self.visit_expr(data), scaling)
        shifting = relax.const(_along(shift, axis, rank).astype(dtype), dtype)
        return relax.op.add(self.builder_.emit(folded), shifting)

    def _fold(self, data: Any, scale: Any) -> Any:
        """The convolution with scaled weights; None if others use it or folding is not exact."""
        conv = self._value(data)
        if op_name(conv) not in _CONVOLUTIONS or self.uses[data] > 1:
            return None
        weight, layout = conv.args[1], str(conv.attrs.kernel_layout)
        axis = layout.index("O")
        # In a grouped transposed convolution, O is the number of channels of one group.
        if not isinstance(weight, GenericConst) or weight.value.shape[axis] != scale.size:
            return None
        values = weight.value.numpy() * _along(scale, axis, len(layout))
        dtype = dtype_of(weight)
        weight = relax.const(values.astype(dtype), dtype)
        return relax.Call(conv.op, [self.visit_expr(conv.args[0]), weight], conv.attrs)


def _along(values: Any, axis: int, rank: int) -> Any:
    """Reshape a vector to `rank` dimensions, so that it varies along `axis`."""
    return values.reshape([-1 if index == axis else 1 for index in range(rank)])


@mutator
class SpellOut(PyExprMutator):  # type: ignore[misc]
    """Replaces `clip` by maximum and minimum, and powers of 2 and 3 by products.

    TVM can convert the layouts of maximum and minimum, but not of `clip`. The constant comes first,
    so that NaN stays NaN (`legalisation`).
    """

    def visit_call_(self, call: relax.Call) -> Any:
        call = super().visit_call_(call)
        name = op_name(call)
        if name == "relax.clip" and "float" in dtype_of(call.args[0]):
            return self._clip(call)
        if name == "relax.power" and isinstance(call.args[1], GenericConst):
            return self._power(call)
        return call

    def _clip(self, call: relax.Call) -> Any:
        value, low, high = call.args[0], *(self._bound(a) for a in call.args[1:])
        if low is None or high is None:
            return call
        dtype = dtype_of(value)
        limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        if low > limits.min:
            value = relax.op.maximum(relax.const(low, dtype), value)
        if high < limits.max:
            value = value if isinstance(value, relax.Var) else self.builder_.emit(value)
            value = relax.op.minimum(relax.const(high, dtype), value)
        return value

    def _power(self, call: relax.Call) -> Any:
        base, exponent = call.args[0], call.args[1].value.numpy()
        if exponent.size != 1 or exponent.item() not in (2, 3) or exponent.ndim > base.ty.ndim:
            return call
        square = relax.op.multiply(base, base)
        if exponent.item() == 2:
            return square
        return relax.op.multiply(self.builder_.emit(square), base)

    @staticmethod
    def _bound(arg: Any) -> float | None:
        value = getattr(arg, "value", arg)
        value = getattr(value, "value", value)
        return float(value) if isinstance(value, (int, float)) else None


@mutator
class VectorMath(PyExprMutator):  # type: ignore[misc]
    """Replaces erf, exp, tanh, sigmoid, softmax and functions of them by polynomials.

    LLVM has only scalar calls for them. For float32 on CPUs. The errors are below 1e-6 of the range
    of the result.
    """

    def visit_call_(self, call: relax.Call) -> Any:
        call = super().visit_call_(call)
        name = op_name(call)
        if name not in _POLYNOMIALS or dtype_of(call.args[0]) != "float32":
            return call
        if name == "relax.nn.softmax":
            axis = int(call.attrs.axis)
            return self.builder_.call_te(topi.nn.fast_softmax, call.args[0], axis)
        return self.builder_.call_te(_POLYNOMIALS[name], call.args[0])


def _sigmoid(x: Any) -> Any:
    def element(*at: Any) -> Any:
        # Limited, because `power_of_two` has no infinity. The constant is first for NaN.
        exponent = tirx.min(tirx.const(_MOST_EXPONENT, "float32"), x(*at) * np.float32(-LOG2_E))
        one = tirx.const(1, "float32")
        return one / (one + power_of_two(exponent))

    return te.compute(x.shape, element, name="sigmoid")


def _silu(x: Any) -> Any:
    return topi.multiply(x, _sigmoid(x))


def _gelu(x: Any) -> Any:
    half = topi.multiply(x, np.float32(0.5))
    return topi.multiply(half, topi.add(topi.fast_erf(x * np.float32(0.5**0.5)), np.float32(1)))


_POLYNOMIALS: dict[str, Any] = {
    "relax.nn.gelu": _gelu,
    "relax.erf": topi.fast_erf,
    "relax.exp": topi.fast_exp,
    "relax.tanh": topi.fast_tanh,
    "relax.sigmoid": _sigmoid,
    "relax.nn.silu": _silu,
    "relax.nn.softmax": topi.nn.fast_softmax,
}
