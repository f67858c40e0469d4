"""Zeros around an image become the padding of the convolution that reads them.

Networks from TensorFlow pad on one side only, by an operator of its own (MobileNet, EfficientNet of
transformers, `tf_` networks of timm). TVM would change the layout of the image for it twice, and
copy the image in each layer.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.workloads.rewrites import op_name

_CONVOLUTIONS = {
    "relax.nn.conv1d": relax.op.nn.conv1d,
    "relax.nn.conv2d": relax.op.nn.conv2d,
    "relax.nn.conv3d": relax.op.nn.conv3d,
}


@mutator
class FoldPadding(PyExprMutator):  # type: ignore[misc]
    """Adds zeros around the pixels to the padding of a convolution with channels first."""

    def prepare(self, func: Any) -> None:
        self.values = relax.analysis.get_var2val(func)

    def visit_call_(self, call: Any) -> Any:
        make = _CONVOLUTIONS.get(op_name(call))
        padded = (
            self.values.get(call.args[0]) if make and isinstance(call.args[0], relax.Var) else None
        )
        if op_name(padded) != "relax.nn.pad" or not str(call.attrs.data_layout).startswith("NC"):
            return super().visit_call_(call)
        widths = [int(width) for width in padded.attrs.pad_width]
        is_zero = str(padded.attrs.pad_mode) == "constant" and float(padded.attrs.pad_value) == 0
        if not is_zero or any(widths[:4]) or min(widths) < 0:
            return super().visit_call_(call)
        pixels = widths[4:]
        more = [*pixels[::2], *pixels[1::2]]  # all that come before, all that come after
        padding = [
            int(width) + extra for width, extra in zip(call.attrs.padding, more, strict=True)
        ]
        data, weights = (self.visit_expr(one) for one in (padded.args[0], call.args[1]))
        given = {name: getattr(call.attrs, name) for name in ("strides", "dilation", "groups")}
        layouts = {
            name: str(getattr(call.attrs, name))
            for name in ("data_layout", "kernel_layout", "out_layout")
        }
        return make(
            data, weights, padding=padding, out_dtype=call.attrs.out_dtype, **given, **layouts
        )
