"""A MetaSchedule trace -> the candidate of a task's space with the same program."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from typing import Any

from tvm.s_tir import Trace
from tvm.s_tir.schedule import Instruction

from tlmd.data.computation import DecisionKind, OpenDecision
from tlmd.data.types import Candidate, Decision
from tlmd.space import apply_trace as applying
from tlmd.space.apply_trace import InvalidCandidate
from tlmd.space.hardware.target import tvm_target
from tlmd.space.sketches import PARALLEL, plain_trace
from tlmd.space.space import TaskSpace, module_hash

_DIGITS = 6  # of probabilities, which JSON may have rounded


def candidate_of(space: TaskSpace, trace: Trace) -> Candidate | None:
    """The candidate with the program of `trace`; None if no sketch of `space` contains it.

    Postprocessors, names of random variables and instructions without effect are ignored. If the
    parallel extent is not an option of its open decision, an option that gives the same program
    takes its place.
    """
    try:
        form, live = _form(trace)
    except applying.TVM_ERRORS:
        return None
    values = [_decision(trace, inst) for inst in live]
    for index, sketch in enumerate(space.sketches):
        sketch_form, positions = _sketch_form(space, index)
        if sketch_form != form:
            continue
        decisions = {at: v for at, v in zip(positions, values, strict=True) if v is not None}
        for extent in _extents(sketch.open_decisions, _parallel_extent(trace)):
            candidate = _candidate(space, index, decisions, extent)
            if candidate is not None and _has_program_of(space, candidate, trace):
                return candidate
    return None


@functools.lru_cache(maxsize=256)
def _sketch_form(space: TaskSpace, index: int) -> tuple[str, tuple[int, ...]]:
    """The form of a sketch, and the positions of the form's instructions in the sketch's trace."""
    trace = space.trace(index)
    form, live = _form(trace)
    at = {inst: i for i, inst in enumerate(trace.insts)}
    return form, tuple(at[inst] for inst in live)


def _form(trace: Trace) -> tuple[str, list[Any]]:
    """The form of a trace: a text without decisions, to compare traces; and its instructions."""
    insts = [inst for inst in trace.insts if not _is_parallel(inst)]
    bare = Trace(insts, dict(trace.decisions.items())).simplified(True)
    return json.dumps(_rounded(plain_trace(bare)[0])), list(bare.insts)


def _is_parallel(inst: Instruction) -> bool:
    return inst.kind.name == "Annotate" and str(inst.attrs[0]) == PARALLEL


def _parallel_extent(trace: Trace) -> int:
    extents = [int(inst.inputs[1]) for inst in trace.insts if _is_parallel(inst)]
    return extents[0] if extents else 0


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return round(value, _DIGITS) if isinstance(value, float) else value


def _decision(trace: Trace, inst: Instruction) -> Decision | None:
    value = trace.get_decision(inst)
    if value is None:
        return None
    try:
        return tuple(int(v) for v in value)
    except TypeError:
        return (int(value),)


def _extents(open_decisions: tuple[OpenDecision, ...], given: int) -> Iterator[int]:
    """The parallel extents to try: `given` if it is an option, else all options, nearest first."""
    options = next((s.options for s in open_decisions if s.kind is DecisionKind.PARALLEL), (given,))
    if given in options:
        yield given
    else:
        yield from sorted(options, key=lambda option: abs(option - given))


def _candidate(
    space: TaskSpace, index: int, by_inst: dict[int, Decision], extent: int
) -> Candidate | None:
    """The candidate with these decisions; None if one of them is missing or not legal."""
    decisions: list[Decision] = []
    for open_decision in space.sketches[index].open_decisions:
        value = (
            (extent,)
            if open_decision.kind is DecisionKind.PARALLEL
            else by_inst.get(open_decision.inst)
        )
        if value is None:  # the decision has no effect: use the value of the sketch
            value = _decision(space.trace(index), space.trace(index).insts[open_decision.inst])
        if value is None or not is_legal(open_decision, value):
            return None
        decisions.append(value)
    return Candidate(space.task.id, index, tuple(decisions))


def is_legal(open_decision: OpenDecision, value: Decision) -> bool:
    """Whether `value` is legal. Compute locations are not checked here; TVM checks them later."""
    if open_decision.kind is DecisionKind.CATEGORY:
        return 0 <= value[0] < len(open_decision.options)
    if open_decision.kind in (DecisionKind.TILE, DecisionKind.PARTITION):
        if len(value) != open_decision.arity:
            return False
        if open_decision.extent == 0:  # a loop of unknown extent
            return True
        fits = min(value) > 0 and math.prod(value) == open_decision.extent
        return fits and (open_decision.limit == 0 or value[-1] <= open_decision.limit)
    return True


def _has_program_of(space: TaskSpace, candidate: Candidate, trace: Trace) -> bool:
    """Whether TVM can apply the candidate, and its program is the program of `trace`."""
    try:
        final = space.finish(candidate)
        if _parallel_extent(trace) in _decided_extents(space, candidate):
            return True
        text = json.dumps(plain_trace(trace))
        target = tvm_target(space.task.target)
        return module_hash(final.mod) == module_hash(
            applying.build_module(space.module, text, target)
        )
    except InvalidCandidate:
        return False


def _decided_extents(space: TaskSpace, candidate: Candidate) -> set[int]:
    """The parallel extents among the decisions of the candidate."""
    open_decisions = space.sketches[candidate.sketch].open_decisions
    pairs = zip(open_decisions, candidate.decisions, strict=True)
    return {d[0] for s, d in pairs if s.kind is DecisionKind.PARALLEL}
