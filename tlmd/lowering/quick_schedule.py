"""A schedule for every heavy function of a model, without measuring: fast enough to check outputs.

Without any schedule a convolution sums one output after the other, which takes ViT-S/16 eleven
seconds. Here reductions run outside of a vector of outputs, and the rest in parallel: a tenth of
that. Nothing is unrolled, so that LLVM is as fast as for the plain loops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir import Schedule

from tlmd.lowering.tunable import SCHEDULED, is_tunable

_HEAVY = 1 << 18  # values that are added up; fewer take a millisecond
_WIDEST = 64  # elements of the vector; more are no faster
_NARROWEST = 4


def scheduled(lowered: IRModule, target: tvm.target.Target) -> IRModule:
    """A lowered model with such schedules, where there is one; as it is for a card."""
    if str(target.kind.name) != "llvm":
        return lowered
    functions = {
        var: _scheduled(func) if is_tunable(func) else func
        for var, func in lowered.functions.items()
    }
    return IRModule(functions, attrs=lowered.attrs)


def _scheduled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    schedule = Schedule(IRModule({"main": func}))
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    try:
        made = [_vectorise(schedule, block) for block in blocks]
    except (RuntimeError, TypeError):  # TVM's primitives do not take the block
        return func
    return schedule.mod["main"].with_attr(SCHEDULED, True) if any(made) else func


def _vectorise(schedule: Schedule, block: Any) -> bool:
    """Schedule a heavy reduction with a vector of outputs. Whether it is one."""
    loops = schedule.get_loops(block)
    extents = [int(schedule.get(loop).extent) for loop in loops]
    kinds = [int(variable.iter_type) for variable in schedule.get(block).iter_vars]
    spatial, reduction = (
        [loop for loop, kind in zip(loops, kinds, strict=False) if kind == wanted]
        for wanted in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
    )
    complete = len(kinds) == len(loops) == len(spatial) + len(reduction)
    if not (complete and spatial and reduction) or math.prod(extents) < _HEAVY:
        return False
    width = _width(int(schedule.get(spatial[-1]).extent))
    if width < _NARROWEST:
        return False
    _schedule(schedule, block, spatial, reduction, width)
    return True


def _schedule(
    schedule: Schedule, block: Any, spatial: Sequence[Any], reduction: Sequence[Any], width: int
) -> None:
    outer, inner = schedule.split(spatial[-1], [None, width])
    schedule.reorder(*spatial[:-1], outer, *reduction, inner)
    schedule.parallel(schedule.fuse(*spatial[:-1], outer))
    schedule.vectorize(inner)
    schedule.decompose_reduction(block, reduction[0])


def _width(extent: int) -> int:
    """The largest divisor of an extent that is no more than `_WIDEST`."""
    return max(width for width in range(1, _WIDEST + 1) if extent % width == 0)
