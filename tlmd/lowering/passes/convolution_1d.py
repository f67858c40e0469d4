"""1-D convolutions as 2-D ones of a single row, with the channels last.

TVM has no loops with channels last for 1-D convolutions, and so none that have alternatives.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.lowering.passes.reshapes import static_shape
from tlmd.lowering.passes.rewrites import has_constant_weights, op_name


@mutator
class SingleRows(PyExprMutator):  # type: ignore[misc]
    """Replaces 1-D convolutions with constant weights.

    `SinkMoves` combines the moves between them, or puts them after what follows.
    """

    def visit_call_(self, call: relax.Call) -> Any:
        call = super().visit_call_(call)
        if op_name(call) != "relax.nn.conv1d" or not has_constant_weights(call, "NCW", "OIW"):
            return call
        shape, out = static_shape(call.args[0]), static_shape(call)
        if shape is None or out is None:
            return call
        attrs, weights = call.attrs, call.args[1].value.numpy()
        batch, channels, width = shape
        moved = self._emit(relax.op.permute_dims(call.args[0], [0, 2, 1]))
        before, after = (int(pad) for pad in attrs.padding)
        row = relax.op.nn.conv2d(
            self._emit(relax.op.reshape(moved, (batch, 1, width, channels))),
            relax.const(weights.transpose(2, 1, 0)[None].copy(), str(weights.dtype)),
            strides=(1, int(attrs.strides[0])),
            padding=(0, before, 0, after),
            dilation=(1, int(attrs.dilation[0])),
            groups=int(attrs.groups),
            data_layout="NHWC",
            kernel_layout="HWIO",
        )
        flat = self._emit(relax.op.reshape(self._emit(row), (batch, out[2], out[1])))
        return relax.op.permute_dims(flat, [0, 2, 1])

    def _emit(self, expr: relax.Expr) -> Any:
        return self.builder_.emit(expr)
