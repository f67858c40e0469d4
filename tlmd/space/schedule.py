"""Decisions -> scheduled module, exactly as TVM applies them, postprocessors included."""

from __future__ import annotations

import functools
import json
from typing import Any

import tvm
from tvm.s_tir import Schedule, Trace
from tvm.s_tir import meta_schedule as ms

from tlmd.space import intrinsics
from tlmd.space.target import architecture
from tlmd.types import TargetInfo

# What TVM raises for a schedule it cannot apply: its own errors are RuntimeErrors.
TVM_ERRORS = (RuntimeError, ValueError, TypeError)


class InvalidCandidate(Exception):
    """TVM refuses the candidate: an instruction cannot be applied, or a postprocessor says no."""


class RepairedDecision(InvalidCandidate):
    """TVM applied something else than was decided; never measured under the wrong name."""


def context(target: Any, module: Any = None, seed: int = 1) -> Any:
    """A `TuneContext` with the rules and postprocessors of `target`'s kind.

    Without a `module` it stands for the target alone: postprocessors and features look no further.
    """
    triple = str(dict(target.attrs).get("mtriple", ""))
    intrinsics.register("cuda" if target.kind.name == "cuda" else architecture(triple))
    return ms.TuneContext(
        mod=module if module is not None else _trivial_module(),
        target=target,
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        num_threads=1,
        rand_state=seed,
    )


@functools.lru_cache(maxsize=8)
def _postprocs(target_json: str) -> tuple[Any, Any]:
    """The postprocessors of a target; the context they were initialised with is kept alive."""
    target = tvm.target.Target(json.loads(target_json))
    ctx = context(target)
    return ctx, tuple(ctx.space_generator.postprocs)


def finish(schedule: Any, target: TargetInfo) -> Any:
    """Run the postprocessors of `target` on `schedule` in place; the final module.

    Raises `InvalidCandidate` when one of them refuses.
    """
    return _finish(schedule, target.spec)


def build_module(module: Any, trace_json: str, target: Any) -> Any:
    """Apply a trace as JSON ``[instructions, decisions]`` to `module`; the final module.

    The trace is as it was before the postprocessors, which are run here. Raises `InvalidCandidate`.
    """
    schedule = Schedule(module)
    try:
        Trace.apply_json_to_schedule(json.loads(trace_json), schedule)
    except TVM_ERRORS as error:
        raise InvalidCandidate(first_line(error)) from error
    return _finish(schedule, str(target))


def first_line(error: BaseException) -> str:
    """The line of a TVM error that says what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        if "Error" in line or "failed" in line.lower():
            return line[:300]
    return lines[-1][:300] if lines else type(error).__name__


def _finish(schedule: Any, target_json: str) -> Any:
    schedule.enter_postproc()
    for postproc in _postprocs(target_json)[1]:
        try:
            accepted = postproc.apply(schedule)
        except TVM_ERRORS as error:
            raise InvalidCandidate(first_line(error)) from error
        if not accepted:
            name = str(postproc).rpartition(".")[2]
            raise InvalidCandidate(f"refused by the postprocessor {name}")
    return schedule.mod


def _trivial_module() -> Any:
    from tvm import te

    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] + 1.0, name="b")
    return tvm.IRModule({"main": te.create_prim_func([a, b])})
