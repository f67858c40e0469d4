"""Operators that TVM's PyTorch importer lacks or imports with the wrong dtype.

The importer's matrix products always return float32. Those of this module return the dtype that
torch returns; they accumulate float16 and bfloat16 in float32, and `_int_mm` in int32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax


def converters() -> dict[str, Callable[[Any, Any], Any]]:
    """The map from operator names to converters for `from_exported_program`."""
    products = ("mm.default", "bmm.default", "matmul.default", "_int_mm.default")
    return {
        **dict.fromkeys(products, _product),
        "addmm.default": _product_with_addend,
        "baddbmm.default": _product_with_addend,
    }


def _result_dtype(node: Any) -> str:
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _multiply(importer: Any, left: Any, right: Any, dtype: str) -> Any:
    """The matrix product in the dtype of its accumulation."""
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    return importer.block_builder.emit(relax.op.matmul(left, right, out_dtype=wide))


def _cast(importer: Any, value: Any, dtype: str) -> Any:
    same = str(value.ty.dtype) == dtype
    return value if same else importer.block_builder.emit(relax.op.astype(value, dtype))


def _product(node: Any, importer: Any) -> Any:
    left, right = (importer.env[arg] for arg in node.args[:2])
    dtype = _result_dtype(node)
    return _cast(importer, _multiply(importer, left, right, dtype), dtype)


def _product_with_addend(node: Any, importer: Any) -> Any:
    addend, left, right = (importer.env[arg] for arg in node.args[:3])
    dtype, emit = _result_dtype(node), importer.block_builder.emit
    total = _multiply(importer, left, right, dtype)
    wide = str(total.ty.dtype)
    addend = _cast(importer, addend, wide)
    if node.kwargs.get("alpha", 1) != 1:
        total = emit(relax.op.multiply(total, relax.const(node.kwargs["alpha"], wide)))
    if node.kwargs.get("beta", 1) != 1:
        addend = emit(relax.op.multiply(addend, relax.const(node.kwargs["beta"], wide)))
    total = emit(relax.op.add(total, addend))
    return _cast(importer, total, dtype)
