"""Replaces forms that TVM's importers write and its later passes cannot take.

- The minimum of several tensors, as of ONNX `Min`, is a reduction of a stack; so are `Max`, `Sum`
  and `Mean`. `ConvertLayout` fails on it behind a convolution (`Invalid SLayout`).
- A layer normalisation over several axes keeps its weights when `ConvertLayout` moves its data.
- The product of two vectors ends the process when it is compiled.

No issue of TVM was found for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.lowering.passes.rewrites import dtype_of, op_name

_PAIRWISE: dict[str, Callable[[Any, Any], Any]] = {
    "relax.max": relax.op.maximum,
    "relax.min": relax.op.minimum,
    "relax.sum": relax.op.add,
    "relax.mean": relax.op.add,
}


@mutator
class SpellOutImports(PyExprMutator):  # type: ignore[misc]
    """Replaces each of these forms by operators that the later passes can take."""

    def prepare(self, func: relax.Function) -> None:
        """Keep the values of the function's variables."""
        self.values = relax.analysis.get_var2val(func)

    def visit_call_(self, call: relax.Call) -> Any:
        name = op_name(call)
        stacked = self._stacked(call) if name in _PAIRWISE else None
        if stacked is not None:
            return self._pairwise(name, stacked)
        call = super().visit_call_(call)
        if name == "relax.nn.layer_norm" and len(call.attrs.axes) > 1:
            return self._over_one_axis(call)
        if name == "relax.matmul" and all(arg.ty.ndim == 1 for arg in call.args):
            return self._dot(call)
        return call

    def _stacked(self, call: relax.Call) -> list[Any] | None:
        """The tensors of which this is a reduction over the axis on which they are stacked."""
        if call.attrs.keepdims or list(map(int, call.attrs.axis or ())) != [0]:
            return None
        stack = self.values.get(call.args[0], call.args[0])
        if op_name(stack) != "relax.stack" or int(stack.attrs.axis or 0) != 0:
            return None
        tensors = self.values.get(stack.args[0], stack.args[0])
        return list(tensors.fields) if isinstance(tensors, relax.Tuple) else None

    def _pairwise(self, name: str, tensors: list[Any]) -> Any:
        visited = list(map(self.visit_expr, tensors))
        total = functools.reduce(
            lambda a, b: self.builder_.emit(_PAIRWISE[name](a, b)), visited[1:], visited[0]
        )
        if name != "relax.mean":
            return total
        return relax.op.divide(total, relax.const(len(tensors), dtype_of(total)))

    def _over_one_axis(self, call: relax.Call) -> Any:
        data, gamma, beta = call.args
        shape = [int(extent) for extent in data.ty.shape]
        axes = sorted(int(axis) % len(shape) for axis in call.attrs.axes)
        if axes != list(range(axes[0], len(shape))):
            return call
        flat = self.builder_.emit(relax.op.reshape(data, (*shape[: axes[0]], -1)))
        weights = [self.builder_.emit(relax.op.reshape(w, (-1,))) for w in (gamma, beta)]
        attrs = call.attrs
        normalised = relax.op.nn.layer_norm(
            flat, *weights, -1, float(attrs.epsilon), bool(attrs.center), bool(attrs.scale)
        )
        return relax.op.reshape(self.builder_.emit(normalised), shape)

    def _dot(self, call: relax.Call) -> Any:
        product = self.builder_.emit(relax.op.multiply(*call.args))
        return relax.op.sum(product, axis=[0])
