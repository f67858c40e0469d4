"""The program that a GPU runs where nothing was searched: TVM's dlight binds loops to threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm
    from tvm.ir import IRModule

_RULES = ("Matmul", "GEMV", "Reduction", "GeneralReduction", "Fallback")


def default_schedules() -> Any:
    """The pass that gives every unscheduled function of a module a schedule for its target."""
    from tvm.s_tir import dlight

    return dlight.ApplyDefaultSchedule(*(getattr(dlight.gpu, rule)() for rule in _RULES))


def scheduled(module: IRModule, target: tvm.target.Target) -> Any:
    """`module` with its unscheduled functions scheduled for the GPU `target`."""
    with target:
        return default_schedules()(module)
