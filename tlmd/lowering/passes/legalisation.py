"""Loops of operators whose own loops in TVM lose NaN.

TVM compiles ``max(a, b)`` to the machine's maximum, which returns `b` if one of them is NaN. TVM
writes ``max(x, 0)`` for relu, so NaN becomes 0; PyTorch and ONNX keep it. With the constant first
it is kept, at the same speed.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi


def own_loops() -> dict[str, Any]:
    """The map of operator names to functions for `relax.transform.LegalizeOps`."""
    return {"relax.nn.relu": _relu, "relax.nn.relu6": _relu6, "relax.clip": _clip}


def _relu(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    return builder.call_te(_within, call.args[0], 0, None, primfunc_name_hint="relu")


def _relu6(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    return builder.call_te(_within, call.args[0], 0, 6, primfunc_name_hint="relu6")


def _clip(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    low, high = map(_number, call.args[1:])
    if "float" not in str(call.args[0].ty.dtype):
        return builder.call_te(topi.clip, call.args[0], low, high)
    return builder.call_te(_within, call.args[0], low, high, primfunc_name_hint="clip")


def _within(x: te.Tensor, low: Any, high: Any) -> te.Tensor:
    def element(*indices: Any) -> Any:
        value = x(*indices)
        if low is not None:
            value = tirx.max(_constant(low, x.dtype), value)
        return value if high is None else tirx.min(_constant(high, x.dtype), value)

    return te.compute(x.shape, element)


def _number(bound: Any) -> Any:
    """The number of a bound, which TVM has as one or as an expression of one."""
    value = bound.value
    return getattr(value, "value", value)


def _constant(value: Any, dtype: str) -> Any:
    return tirx.const(value, dtype)
