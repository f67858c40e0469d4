"""A MetaSchedule trace -> the candidate of a task's space that it stands for."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from typing import Any

from tvm.s_tir import Trace

from tlmd.space import schedule as applying
from tlmd.space.schedule import InvalidCandidate
from tlmd.space.sketches import PARALLEL, plain_trace
from tlmd.space.space import TaskSpace, module_hash
from tlmd.space.target import tvm_target
from tlmd.types import Candidate, Decision, Slot, SlotKind

_DIGITS = 6  # of probabilities, which went through JSON


def candidate_of(space: TaskSpace, trace: Any) -> Candidate | None:
    """The candidate whose program `trace` makes, or None where no sketch of `space` has it.

    Postprocessors, names of random variables and instructions without effect do not count. For a
    parallel extent that is no option of its slot stands an option that makes the same program.
    """
    try:
        form, live = _form(trace)
    except applying.TVM_ERRORS:
        return None
    values = [_decision(trace, inst) for inst in live]
    for index, sketch in enumerate(space.sketches):
        known, positions = _sketch_form(space, index)
        if known != form:
            continue
        made = {at: v for at, v in zip(positions, values, strict=True) if v is not None}
        for extent in _extents(sketch.slots, _parallel_extent(trace)):
            candidate = _candidate(space, index, made, extent)
            if candidate is not None and _makes_program_of(space, candidate, trace):
                return candidate
    return None


@functools.lru_cache(maxsize=256)
def _sketch_form(space: TaskSpace, index: int) -> tuple[str, tuple[int, ...]]:
    """The form of a sketch, and where the instructions of the form stand in its trace."""
    trace = space.trace(index)
    form, live = _form(trace)
    at = {inst: i for i, inst in enumerate(trace.insts)}
    return form, tuple(at[inst] for inst in live)


def _form(trace: Any) -> tuple[str, list[Any]]:
    """A trace as text to compare, without what is decided, and the instructions in it."""
    insts = [inst for inst in trace.insts if not _is_parallel(inst)]
    bare = Trace(insts, dict(trace.decisions.items())).simplified(True)
    return json.dumps(_rounded(plain_trace(bare)[0])), list(bare.insts)


def _is_parallel(inst: Any) -> bool:
    return inst.kind.name == "Annotate" and str(inst.attrs[0]) == PARALLEL


def _parallel_extent(trace: Any) -> int:
    extents = [int(inst.inputs[1]) for inst in trace.insts if _is_parallel(inst)]
    return extents[0] if extents else 0


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return round(value, _DIGITS) if isinstance(value, float) else value


def _decision(trace: Any, inst: Any) -> Decision | None:
    value = trace.get_decision(inst)
    if value is None:
        return None
    try:
        return tuple(int(v) for v in value)
    except TypeError:
        return (int(value),)


def _extents(slots: tuple[Slot, ...], given: int) -> Iterator[int]:
    """Parallel extents to try: the one given where it can be said, else the nearest first."""
    options = next((s.options for s in slots if s.kind is SlotKind.PARALLEL), (given,))
    if given in options:
        yield given
    else:
        yield from sorted(options, key=lambda option: abs(option - given))


def _candidate(
    space: TaskSpace, index: int, made: dict[int, Decision], extent: int
) -> Candidate | None:
    """The candidate with these decisions, or None where one of them is missing or not legal."""
    decisions: list[Decision] = []
    for slot in space.sketches[index].slots:
        value = (extent,) if slot.kind is SlotKind.PARALLEL else made.get(slot.inst)
        if value is None:  # the slot has no effect: any value will do
            value = _decision(space.trace(index), space.trace(index).insts[slot.inst])
        if value is None or not _legal(slot, value):
            return None
        decisions.append(value)
    return Candidate(space.task.id, index, tuple(decisions))


def _legal(slot: Slot, value: Decision) -> bool:
    """Whether the slot has this value; TVM itself tells for compute locations."""
    if slot.kind is SlotKind.CATEGORY:
        return 0 <= value[0] < len(slot.options)
    if slot.kind in (SlotKind.TILE, SlotKind.PARTITION):
        if len(value) != slot.arity:
            return False
        if slot.extent == 0:  # a loop of unknown extent
            return True
        fits = min(value) > 0 and math.prod(value) == slot.extent
        return fits and (slot.limit == 0 or value[-1] <= slot.limit)
    return True


def _makes_program_of(space: TaskSpace, candidate: Candidate, trace: Any) -> bool:
    """Whether TVM applies the candidate, and it makes the program that `trace` makes."""
    try:
        final = space.finish(candidate)
        if _parallel_extent(trace) in _said(space, candidate):
            return True
        text = json.dumps(plain_trace(trace))
        target = tvm_target(space.task.target)
        return module_hash(final.mod) == module_hash(
            applying.build_module(space.module, text, target)
        )
    except InvalidCandidate:
        return False


def _said(space: TaskSpace, candidate: Candidate) -> set[int]:
    """The parallel extents that the candidate stands for by itself."""
    slots = space.sketches[candidate.sketch].slots
    pairs = zip(slots, candidate.decisions, strict=True)
    return {d[0] for s, d in pairs if s.kind is SlotKind.PARALLEL}
