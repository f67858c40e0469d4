"""Which functions of a lowered model are tasks."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

SCHEDULED = "tirx.is_scheduled"
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def is_tunable(func: Any) -> bool:
    """Whether a function is made of blocks and not scheduled; TVM writes some as plain loops.

    Its shapes are fixed, and it divides no integers by values that are random when it is timed: a
    zero among them would end the process.
    """
    if not isinstance(func, tirx.PrimFunc) or (func.attrs and func.attrs.get(SCHEDULED)):
        return False
    block = getattr(func.body, "block", None)
    is_of_blocks = block is not None and block.name_hint == "root"
    return is_of_blocks and _has_fixed_shapes(func) and not _divides_by_values(func)


def _has_fixed_shapes(func: tirx.PrimFunc) -> bool:
    kinds = [param.ty for param in func.params]
    extents = [extent for kind in kinds for extent in getattr(kind, "shape", ())]
    return all(hasattr(kind, "shape") for kind in kinds) and all(
        isinstance(extent, tirx.IntImm) for extent in extents
    )


def _divides_by_values(func: tirx.PrimFunc) -> bool:
    found: list[Any] = []

    def look(division: Any) -> None:
        if "int" in str(division.ty.dtype):
            tvm_ffi.structural_walk(division.b, (TensorLoad, found.append))

    tvm_ffi.structural_walk(func.body, [(kind, look) for kind in _DIVISIONS])
    return bool(found)
