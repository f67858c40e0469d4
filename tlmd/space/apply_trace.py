"""Apply a trace with TVM: decisions -> scheduled module, including the postprocessors."""

from __future__ import annotations

import functools
import json
from typing import Any

import tvm
from tvm.ir import IRModule
from tvm.s_tir import Schedule, Trace
from tvm.s_tir import meta_schedule as ms

from tlmd.alternatives import catalogue
from tlmd.alternatives.named_intrinsics import register_named
from tlmd.data.types import TargetInfo
from tlmd.space import intrinsics
from tlmd.space.hardware.target import architecture, vector_unit
from tlmd.space.rules import expansion_sketches, rules, transposition_sketches, window_sketches
from tlmd.space.sketches import instructions

# The exceptions that TVM raises for a schedule it cannot apply. Its own errors are RuntimeErrors.
TVM_ERRORS = (RuntimeError, ValueError, TypeError)
_PARALLEL_EXTENT = 16  # of a trace in which it is not decided yet


class InvalidCandidate(Exception):
    """TVM refuses the candidate: it cannot apply an instruction, or a postprocessor fails."""


class RepairedDecision(InvalidCandidate):
    """TVM applied other decisions than those of the candidate, which is then not measured."""


def context(target: tvm.target.Target, module: IRModule | None = None, seed: int = 1) -> Any:
    """A `TuneContext` with the rules and postprocessors of `target`'s kind.

    Postprocessors and features need only the target, so `module` may be None for them.
    """
    module = module if module is not None else _trivial_module()
    return _context(module, target, _generator(target), seed)


def _generator(target: tvm.target.Target) -> Any:
    """The space generator of `target`'s kind."""
    if target.kind.name != "cuda":
        triple = str(dict(target.attrs).get("mtriple", ""))
        intrinsics.register(architecture(triple))
        return "post-order-apply"
    # TVM would choose the rules for tensor cores, which need half precision, and parse all of its
    # intrinsics for them (20 s).
    intrinsics.register("cuda")
    return ms.space_generator.PostOrderApply(
        sch_rules="cuda", postprocs="cuda", mutator_probs="cuda"
    )


def design_space(target: tvm.target.Target, module: IRModule, seed: int) -> list[Any]:
    """The traces of a task's sketches: TVM's, then tlmd's own, then those of `EXTRA_RULES`.

    So a new rule does not change the index of a sketch that records refer to. An alternative has
    its own sketches: TVM's rules fail for its program, or make worse ones.
    """
    unit = vector_unit(target)
    own = list(catalogue.sketches(module, unit, _PARALLEL_EXTENT))
    if not own and target.kind.name != "cuda":
        cores = int(target.attrs.get("num-cores", 1))
        own = expansion_sketches.sketch(module, unit, _PARALLEL_EXTENT, cores)
    if own:
        return own
    plain = context(target, module, seed)
    generator = rules.in_one_order(plain.space_generator)
    if generator is not plain.space_generator:
        plain = _context(module, target, generator, seed)
    traces = [schedule.trace for schedule in plain.generate_design_space()]
    if target.kind.name != "cuda":
        traces += transposition_sketches.sketch(module, _PARALLEL_EXTENT)
        traces += window_sketches.sketch(module, unit, _PARALLEL_EXTENT)
    if rules.EXTRA_RULES:
        generator = rules.with_extra_rules(generator)
        extended = _context(module, target, generator, seed).generate_design_space()
        existing = {instructions(trace) for trace in traces}
        traces += [s.trace for s in extended if instructions(s.trace) not in existing]
    return traces


def _context(module: IRModule, target: tvm.target.Target, generator: Any, seed: int) -> Any:
    return ms.TuneContext(
        mod=module,
        target=target,
        space_generator=generator,
        search_strategy="evolutionary",
        num_threads=1,
        rand_state=seed,
    )


@functools.lru_cache(maxsize=8)
def _postprocs(target_json: str) -> tuple[Any, Any]:
    """The postprocessors of a target, and the context they use, which must stay alive."""
    target = tvm.target.Target(json.loads(target_json))
    ctx = context(target)
    return ctx, tuple(ctx.space_generator.postprocs)


def finish(schedule: Schedule, target: TargetInfo) -> Any:
    """Run the postprocessors of `target` on `schedule` in place, and return the final module.

    Raises `InvalidCandidate` if one of them fails.
    """
    return _finish(schedule, target.spec)


def build_module(module: IRModule, trace_json: str, target: tvm.target.Target) -> Any:
    """Apply a trace, as JSON ``[instructions, decisions]``, to `module`; return the final module.

    The trace is the one before the postprocessors; they run here. Raises `InvalidCandidate`.
    """
    schedule = Schedule(module)
    register_named(trace_json)
    try:
        Trace.apply_json_to_schedule(json.loads(trace_json), schedule)
    except TVM_ERRORS as error:
        raise InvalidCandidate(first_line(error)) from error
    return _finish(schedule, str(target))


def first_line(error: BaseException) -> str:
    """The line of a TVM error that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        if "Error" in line or "failed" in line.lower():
            return line[:300]
    return lines[-1][:300] if lines else type(error).__name__


def _finish(schedule: Schedule, target_json: str) -> Any:
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
