"""Zeros around an image become the padding of the convolution that reads them.

Networks from TensorFlow pad on one side only, by an operator of its own (MobileNet, EfficientNet of
transformers, `tf_` networks of timm). TVM would change the layout of the image for it twice, and
copy the image in each layer.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.lowering.passes.rewrites import op_name

_LAYOUTS = ("data_layout", "kernel_layout", "out_layout")
_CONVOLUTIONS: dict[str, Any] = {
    "relax.nn.conv1d": relax.op.nn.conv1d,
    "relax.nn.conv2d": relax.op.nn.conv2d,
    "relax.nn.conv3d": relax.op.nn.conv3d,
}


@mutator
class FoldPadding(PyExprMutator):  # type: ignore[misc]
    """Adds zeros around the pixels to the padding of a convolution with channels first."""

    def prepare(self, func: relax.Function) -> None:
        self.values = relax.analysis.get_var2val(func)

    def visit_call_(self, call: relax.Call) -> Any:
        make = _CONVOLUTIONS.get(op_name(call))
        if make is None or not str(call.attrs.data_layout).startswith("NC"):
            return super().visit_call_(call)
        padded: Any = self.values.get(call.args[0])
        widths = _zeros(padded)
        if widths is None:
            return super().visit_call_(call)
        more = [*widths[::2], *widths[1::2]]  # all that come before, all that come after
        padding = [int(old) + new for old, new in zip(call.attrs.padding, more, strict=True)]
        data, weights = (self.visit_expr(one) for one in (padded.args[0], call.args[1]))
        given = {name: getattr(call.attrs, name) for name in ("strides", "dilation", "groups")}
        layouts = {name: str(getattr(call.attrs, name)) for name in _LAYOUTS}
        return make(
            data, weights, padding=padding, out_dtype=call.attrs.out_dtype, **given, **layouts
        )


def _zeros(padded: relax.Expr) -> list[int] | None:
    """How many zeros are before and after the pixels in each dimension; None for anything else."""
    if op_name(padded) != "relax.nn.pad" or str(padded.attrs.pad_mode) != "constant":
        return None
    widths = [int(width) for width in padded.attrs.pad_width]
    if float(padded.attrs.pad_value) != 0 or any(widths[:4]) or min(widths) < 0:
        return None
    return widths[4:]
