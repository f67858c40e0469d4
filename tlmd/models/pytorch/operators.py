"""Converters of operators that TVM's PyTorch importer lacks or imports wrongly.

All converters, TVM's too, are checked: a result gets the dtype that it has in PyTorch, and another
shape than in PyTorch is an error. The importer's matrix products always return float32; those of
this module accumulate float16 and bfloat16 in float32 (`precision`), and integers in the result's
dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from tvm import relax
from tvm.ir import GenericConst

from tlmd.models.pytorch import precision
from tlmd.models.pytorch.lacking import scattering
from tlmd.models.pytorch.precision import Converter, cast, emit, is_nan, result_dtype, wide


class NotConvertible(ValueError):
    """A node that cannot be converted."""

    def __init__(self, node: Any, reason: str) -> None:
        super().__init__(reason)
        self.node = node


def converters() -> dict[str, Converter]:
    """The map from operator names to converters for `from_exported_program`."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    stock = ExportedProgramImporter().create_convert_map()
    own = _own()
    names, importers = {*stock, *own}, list[Any]()
    return {n: _checked(precision.in_wide(n, own.get(n) or _stock(n)), importers) for n in names}


def _own() -> dict[str, Converter]:
    products = ("mm.default", "bmm.default", "matmul.default", "_int_mm.default")
    return {
        **dict.fromkeys(products, _product),
        "addmm.default": _product_with_addend,
        "baddbmm.default": _product_with_addend,
        "amax.default": _reduction(relax.op.max),
        "amin.default": _reduction(relax.op.min),
        "prod.dim_int": _reduction(relax.op.prod),
        "sum.dim_IntList": _reduction(relax.op.sum),
        "cumsum.default": _scan(relax.op.cumsum),
        "cumprod.default": _scan(relax.op.cumprod),
        "div.Tensor_mode": _integer_division,
        "maximum.default": _extreme(relax.op.maximum),
        "minimum.default": _extreme(relax.op.minimum),
        **dict.fromkeys(("ne.Tensor", "ne.Scalar"), _not_equal),
        "__lshift__.Scalar": _shift(relax.op.left_shift),
        "__rshift__.Scalar": _shift(relax.op.right_shift),
        "bitwise_left_shift.Tensor": _shift(relax.op.left_shift),
        "bitwise_right_shift.Tensor": _shift(relax.op.right_shift),
        **dict.fromkeys(("grid_sampler_2d.default", "grid_sampler_3d.default"), _grid_sample),
        **dict.fromkeys(("sort.stable", "sort.default"), _sort),
        **scattering.converters(),
        "getitem": _getitem,
        **precision.converters(),
    }


def _stock(name: str) -> Converter:
    """TVM's converter."""

    def convert(node: Any, importer: Any) -> Any:
        if not hasattr(importer, "stock_converters"):
            importer.stock_converters = importer.create_convert_map()
        return importer.stock_converters[name](node)

    return convert


def _checked(converter: Converter, importers: list[Any]) -> Converter:
    """The converter with a check of its result. `importers` keeps the one that called last.

    TVM gives no importer to the converters of nodes in the branches of `torch.cond`.
    """

    def convert(node: Any, importer: Any = None) -> Any:
        if importer is None:
            (importer,) = importers
        importers[:] = [importer]
        try:
            result = converter(node, importer)
        except NotConvertible:
            raise
        except Exception as error:
            raise NotConvertible(node, f"{type(error).__name__}: {error}") from error
        return _as_in_torch(node, importer, result)

    return convert


def _as_in_torch(node: Node, importer: Any, result: Any) -> Any:
    """The result with PyTorch's dtype. Raises `NotConvertible` if it has another shape."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(result, relax.Expr):
        return result
    if isinstance(result, relax.Call):
        result = emit(importer, result)
    shape = getattr(getattr(result, "ty", None), "shape", None)
    if not isinstance(getattr(result, "ty", None), relax.TensorType):
        return result
    wanted = list(value.shape)
    if shape is not None and all(isinstance(extent, int) for extent in wanted):
        got = [getattr(extent, "value", extent) for extent in shape]
        if got != wanted:
            raise NotConvertible(node, f"the shape would be {got}, not {wanted}")
    return cast(importer, result, result_dtype(node))


def _operands(node: Node, importer: Any, dtype: str) -> list[Any]:
    """The first two arguments in `dtype`; numbers become constants."""
    values = [importer.env[arg] if hasattr(arg, "users") else arg for arg in node.args[:2]]
    return [
        cast(importer, v, dtype) if isinstance(v, relax.Expr) else relax.const(v, dtype)
        for v in values
    ]


def _multiply(importer: Any, left: relax.Expr, right: relax.Expr, dtype: str) -> Any:
    """The matrix product in the dtype of its accumulation."""
    return emit(importer, relax.op.matmul(left, right, out_dtype=wide(dtype)))


def _product(node: Node, importer: Any) -> Any:
    left, right = (importer.env[arg] for arg in node.args[:2])
    dtype = result_dtype(node)
    return cast(importer, _multiply(importer, left, right, dtype), dtype)


def _product_with_addend(node: Node, importer: Any) -> Any:
    addend, left, right = (importer.env[arg] for arg in node.args[:3])
    dtype = result_dtype(node)
    total = _multiply(importer, left, right, dtype)
    total_dtype = str(total.ty.dtype)
    addend = cast(importer, addend, total_dtype)
    if node.kwargs.get("alpha", 1) != 1:
        alpha = relax.const(node.kwargs["alpha"], total_dtype)
        total = emit(importer, relax.op.multiply(total, alpha))
    beta = node.kwargs.get("beta", 1)
    if beta == 0:
        # Even NaN times zero is left out.
        return cast(importer, total, dtype)
    if beta != 1:
        addend = emit(importer, relax.op.multiply(addend, relax.const(beta, total_dtype)))
    total = emit(importer, relax.op.add(total, addend))
    return cast(importer, total, dtype)


def _argument(node: Any, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _reduction(op: Callable[..., Any]) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        dtype = _of_sum(node, importer)
        x = cast(importer, importer.env[node.args[0]], dtype)
        dims = _argument(node, 1, "dim", None)
        if isinstance(dims, (list, tuple)):
            dims = list(dims) or None
        if x.ty.ndim == 0:
            return x
        keep = bool(_argument(node, 2, "keepdim", False))
        reduced = emit(importer, op(x, dims, keep))
        if op not in (relax.op.max, relax.op.min) or "float" not in dtype:
            return reduced
        # The largest and the smallest are NaN where there is one.
        unordered = cast(importer, is_nan(importer, x), "int8")
        unordered = cast(importer, emit(importer, relax.op.max(unordered, dims, keep)), "bool")
        return emit(importer, relax.op.where(unordered, relax.const(np.nan, dtype), reduced))

    return convert


def _of_sum(node: Any, importer: Any) -> str:
    """The dtype of a reduction: PyTorch's, or a wider one in which its operand comes."""
    dtype, given = result_dtype(node), str(importer.env[node.args[0]].ty.dtype)
    return given if given == wide(dtype) else dtype


def _scan(op: Callable[..., Any]) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        dtype = _of_sum(node, importer)
        x = cast(importer, importer.env[node.args[0]], dtype)
        if x.ty.ndim == 0:
            return x
        return emit(importer, op(x, _argument(node, 1, "dim", 0), dtype))

    return convert


def _integer_division(node: Node, importer: Any) -> Any:
    left, right = _operands(node, importer, result_dtype(node))
    floor = node.kwargs["rounding_mode"] == "floor"
    return emit(importer, (relax.op.floor_divide if floor else relax.op.divide)(left, right))


def _extreme(op: Callable[..., Any]) -> Converter:
    """The larger or smaller one; NaN if one of them is NaN."""

    def convert(node: Any, importer: Any) -> Any:
        dtype = result_dtype(node)
        left, right = _operands(node, importer, dtype)
        chosen = emit(importer, op(left, right))
        if "float" not in dtype:
            return chosen
        # TVM returns the second one if they cannot be compared.
        return emit(importer, relax.op.where(is_nan(importer, left), left, chosen))

    return convert


def _not_equal(node: Node, importer: Any) -> Any:
    """NaN differs from everything; in TVM it does not."""
    dtype = str(importer.env[node.args[0]].ty.dtype)
    values = _operands(node, importer, dtype)
    differs = emit(importer, relax.op.not_equal(*values))
    for value in values if "float" in dtype else []:
        if not isinstance(value, GenericConst):
            unordered = is_nan(importer, value)
            differs = emit(importer, relax.op.logical_or(differs, unordered))
    return differs


def _shift(op: Callable[..., Any]) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        return emit(importer, op(*_operands(node, importer, result_dtype(node))))

    return convert


def _grid_sample(node: Any, importer: Any) -> Any:
    """PyTorch has the coordinates last; TVM has them where the channels are."""
    image, grid = (importer.env[arg] for arg in node.args[:2])
    mode, padding, align_corners = node.args[2:5]
    rank = int(grid.ty.ndim)
    order = [0, rank - 1, *range(1, rank - 1)]
    return emit(
        importer,
        relax.op.image.grid_sample(
            image,
            emit(importer, relax.op.permute_dims(grid, order)),
            method=("bilinear", "nearest", "bicubic")[mode],
            layout="NCHW" if rank == 4 else "NCDHW",
            padding_mode=("zeros", "border", "reflection")[padding],
            align_corners=align_corners,
        ),
    )


def _sort(node: Any, importer: Any) -> Any:
    x = importer.env[node.args[0]]
    names = [argument.name for argument in node.target._schema.arguments[1:]]
    given = {"dim": -1, "descending": False, **dict(zip(names, node.args[1:], strict=False))}
    given |= node.kwargs
    axis = int(given["dim"])
    if x.ty.ndim == 0:
        return relax.Tuple([x, relax.const(0, "int64")])
    order = relax.op.argsort(x, axis, bool(given["descending"]), dtype="int64")
    order = emit(importer, order)
    values = emit(importer, relax.op.gather_elements(x, order, axis=axis))
    return emit(importer, relax.Tuple([values, order]))


def _getitem(node: Any, importer: Any) -> Any:
    source, index = importer.env[node.args[0]], node.args[1]
    single = isinstance(getattr(source, "ty", None), relax.TensorType)
    if single and isinstance(index, int):
        if index == 0:
            return source
        raise NotConvertible(node.args[0], f"TVM does not compute output {index}")
    return _stock("getitem")(node, importer)
