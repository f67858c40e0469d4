"""Operators in the precision in which PyTorch's kernels for CPUs compute them.

A kernel of PyTorch for float16 or bfloat16 reads and writes 16 bits, and computes in float32: a sum
of thousands of numbers would stand still in 16 bits. TVM computes in the dtype of the operands, has
no loops for some operators in bfloat16 or float64, and its importer computes convolutions in
float32 whatever their operands are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tlmd.models.sources import numpy_dtype

Converter = Callable[[Any, Any], Any]

_HALF = ("float16", "bfloat16")

# Operators that round more than once, and those that TVM lacks or gets wrong in bfloat16 (it orders
# the bits). Others round once at most: their results are the same whatever they are computed in.
_WIDE = frozenset(
    f"{name}.default"
    for name in (
        *("_adaptive_avg_pool1d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_log_softmax"),
        *(
            "_softmax",
            "acos",
            "argmax",
            "argmin",
            "argsort",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atan2",
            "atanh",
            "avg_pool1d",
        ),
        *("avg_pool2d", "avg_pool3d", "ceil", "celu", "cos", "cosh", "elu", "erf", "exp", "expm1"),
        *(
            "floor",
            "gelu",
            "topk",
            "grid_sampler_2d",
            "grid_sampler_3d",
            "hardsigmoid",
            "hardswish",
        ),
        *("isfinite", "isinf", "isnan", "linalg_vector_norm", "log", "log10", "log1p", "log2"),
        *("native_group_norm", "native_layer_norm", "reciprocal", "round", "rsqrt", "selu"),
        *("sigmoid", "silu", "sin", "sinh", "softplus", "softshrink", "softsign", "sqrt", "tan"),
        *("tanh", "trunc"),
    )
) | {
    *("mean.dim", "pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "fmod.Tensor"),
    *("_native_batch_norm_legit.no_stats", "upsample_bicubic2d.vec", "upsample_bilinear2d.vec"),
    *("cumprod.default", "cumsum.default", "prod.dim_int", "sum.dim_IntList"),
    *("sort.default", "sort.stable"),
}

# In autocast the data may have 16 bits, and the statistics not.
_MIXED = {"_native_batch_norm_legit_no_training.default"}

# Of each rank of the data, and of whether it is transposed: the operator and its layouts.
_CONVOLUTIONS = {
    (3, False): (relax.op.nn.conv1d, "NCW", "OIW"),
    (4, False): (relax.op.nn.conv2d, "NCHW", "OIHW"),
    (5, False): (relax.op.nn.conv3d, "NCDHW", "OIDHW"),
    (3, True): (relax.op.nn.conv1d_transpose, "NCW", "IOW"),
    (4, True): (relax.op.nn.conv2d_transpose, "NCHW", "IOHW"),
    (5, True): (relax.op.nn.conv3d_transpose, "NCDHW", "IODHW"),
}


def converters() -> dict[str, Converter]:
    """The converters of this module by the names of the operators."""
    return {
        "convolution.default": _convolution,
        "native_layer_norm.default": _layer_norm,
        "native_group_norm.default": _group_norm,
    }


def in_wide(name: str, converter: Converter) -> Converter:
    """The converter of the operator `name` that computes 16-bit operands in float32.

    Its result may be float32, too; `operators` casts it to PyTorch's dtype.
    """
    if name not in _WIDE | _MIXED:
        return converter

    def convert(node: Any, importer: Any) -> Any:
        given = {source: importer.env.get(source) for source in node.all_input_nodes}
        half = {source: value for source, value in given.items() if _is_half(value)}
        if name in _MIXED and len(half) == len(given):
            return converter(node, importer)
        try:
            for source, value in half.items():
                importer.env[source] = cast(importer, value, "float32")
            return converter(node, importer)
        finally:
            importer.env.update(half)

    return convert


def _is_half(value: Any) -> bool:
    kind = getattr(value, "ty", None)
    return isinstance(kind, relax.TensorType) and str(kind.dtype) in _HALF


def wide(dtype: str) -> str:
    """The dtype in which PyTorch computes numbers of `dtype`."""
    return "float32" if dtype in _HALF else dtype


def result_dtype(node: Any) -> str:
    """The dtype of a node's result in PyTorch."""
    return str(node.meta["val"].dtype).removeprefix("torch.")


def emit(importer: Any, expr: relax.Expr) -> Any:
    """A variable with the value of `expr`."""
    return importer.block_builder.emit(expr)


def cast(importer: Any, value: relax.Expr, dtype: str) -> Any:
    """`value` in `dtype`."""
    same = str(value.ty.dtype) == dtype
    return value if same else emit(importer, relax.op.astype(value, dtype))


def is_nan(importer: Any, value: relax.Expr) -> Any:
    """Where `value` is NaN, which TVM does not ask of 16 bits."""
    return emit(importer, relax.op.isnan(cast(importer, value, wide(str(value.ty.dtype)))))


def _convolution(node: Any, importer: Any) -> Any:
    x, weight = (importer.env[arg] for arg in node.args[:2])
    bias = None if node.args[2] is None else importer.env[node.args[2]]
    stride, padding, dilation, transposed, output_padding, groups = node.args[3:9]
    rank = int(x.ty.ndim)
    op, layout, kernel_layout = _CONVOLUTIONS[rank, bool(transposed)]
    total = wide(result_dtype(node))
    options: dict[str, Any] = {"data_layout": layout, "kernel_layout": kernel_layout}
    options |= {"strides": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed:
        options["output_padding"] = output_padding
    result = emit(importer, op(x, weight, **options, out_dtype=total))
    if bias is None:
        return result
    shape = [1, -1, *(1 for _ in range(rank - 2))]
    bias = emit(importer, relax.op.reshape(cast(importer, bias, total), shape))
    return emit(importer, relax.op.add(result, bias))


def _layer_norm(node: Any, importer: Any) -> Any:
    x = importer.env[node.args[0]]
    shape, dtype = [int(extent) for extent in node.args[1]], str(x.ty.dtype)
    scale, shift = _factors(node, importer, (2, 3), shape, dtype)
    axes, epsilon = list(range(-len(shape), 0)), float(node.args[4])
    if dtype == "float32":
        return emit(importer, relax.op.nn.layer_norm(x, scale, shift, axes=axes, epsilon=epsilon))
    return _scaled(importer, _normal(importer, x, axes, epsilon), scale, shift)


def _group_norm(node: Any, importer: Any) -> Any:
    x = importer.env[node.args[0]]
    dtype, rank = str(x.ty.dtype), int(x.ty.ndim)
    channels, groups, epsilon = int(node.args[4]), int(node.args[6]), float(node.args[7])
    scale, shift = _factors(node, importer, (1, 2), [channels], dtype)
    if dtype == "float32":
        axes = list(range(2, rank))
        options = {"num_groups": groups, "channel_axis": 1, "axes": axes, "epsilon": epsilon}
        return emit(importer, relax.op.nn.group_norm(x, scale, shift, **options))
    shape = [int(extent) for extent in node.meta["val"][0].shape]
    rows = emit(importer, relax.op.reshape(x, [shape[0], groups, -1]))
    normal = emit(importer, relax.op.reshape(_normal(importer, rows, [-1], epsilon), shape))
    along = [1, channels, *(1 for _ in range(rank - 2))]
    scale, shift = (emit(importer, relax.op.reshape(v, along)) for v in (scale, shift))
    return _scaled(importer, normal, scale, shift)


def _factors(
    node: Any, importer: Any, places: tuple[int, int], shape: list[int], dtype: str
) -> list[Any]:
    """The scale and the shift of a normalisation; 1 and 0 where it has none."""
    factors = []
    for place, default in zip(places, (1, 0), strict=True):
        if node.args[place] is None:
            default_values = np.full(shape, default).astype(numpy_dtype(dtype))
            factors.append(relax.const(default_values, dtype))
        else:
            factors.append(cast(importer, importer.env[node.args[place]], dtype))
    return factors


def _normal(importer: Any, x: relax.Expr, axes: list[int], epsilon: float) -> Any:
    """`x` with mean 0 and variance 1 along some axes. TVM has its own loops for float32 only."""
    mean = emit(importer, relax.op.mean(x, axes, keepdims=True))
    centred = emit(importer, relax.op.subtract(x, mean))
    squares = emit(importer, relax.op.multiply(centred, centred))
    variance = emit(importer, relax.op.mean(squares, axes, keepdims=True))
    shifted = emit(importer, relax.op.add(variance, relax.const(epsilon, str(x.ty.dtype))))
    return emit(importer, relax.op.divide(centred, emit(importer, relax.op.sqrt(shifted))))


def _scaled(importer: Any, value: relax.Expr, scale: relax.Expr, shift: relax.Expr) -> Any:
    scaled = emit(importer, relax.op.multiply(value, scale))
    return emit(importer, relax.op.add(scaled, shift))
