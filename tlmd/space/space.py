"""`TaskSpace`: the sketches of one task, and the scheduled modules of its candidates."""

from __future__ import annotations

import functools
import json
from random import Random
from typing import Any

import tvm_ffi
from tvm.ir import IRModule
from tvm.s_tir import Schedule, Trace
from tvm.s_tir.schedule import Instruction

from tlmd.data.computation import Computation, DecisionKind, Sketch
from tlmd.data.types import Candidate, Decision, Task
from tlmd.space import apply_trace as applying
from tlmd.space import task_module
from tlmd.space.apply_trace import InvalidCandidate, RepairedDecision
from tlmd.space.describe import block_names, describe
from tlmd.space.hardware.target import tvm_target
from tlmd.space.locations import Locations, TiledNest, tiled_nest
from tlmd.space.sketches import PlainTrace, plain_trace, read_sketch

# TVM's rules draw random numbers while they build sketches; a fixed seed gives fixed sketches.
_SEED = 1
_MAX_LOOP = 1 << 20


def _differences(decided: tuple[Decision, ...], applied: tuple[Decision, ...]) -> str:
    """The decisions that TVM has changed."""
    changed = [
        f"decision {index}: {_factors(ours)}, TVM applied {_factors(theirs)}"
        for index, (ours, theirs) in enumerate(zip(decided, applied, strict=False))
        if ours != theirs
    ]
    return "; ".join(changed) or f"{len(decided)} decisions, TVM has {len(applied)}"


def _factors(decision: Decision) -> str:
    return "x".join(map(str, decision))


class TaskSpace:
    """The design space of one task.

    `computation` describes the task for the prompt. `sketches` are the parts of the design space; a
    task with no open decision has one sketch.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.module = task_module.load(task.module)
        self.computation: Computation = describe(self.module)
        names = block_names(self.module)
        self._traces = applying.design_space(tvm_target(task.target), self.module, _SEED)
        self._insts = [list(t.insts) for t in self._traces]
        self._plain: list[PlainTrace] = [plain_trace(t) for t in self._traces]
        self.sketches: tuple[Sketch, ...] = tuple(
            read_sketch(i, plain, names, self.computation, task.target)
            for i, plain in enumerate(self._plain)
        )
        nests = tuple(map(self._nest, self.sketches))
        self._locations = Locations(self.sketches, nests, self._probe, self._draw)

    def random(self, rng: Random, sketch: int | None = None) -> Candidate:
        """Draw a candidate with TVM's sampler; the sketch and the parallel extent uniformly."""
        index = rng.randrange(len(self.sketches)) if sketch is None else sketch
        parallel = {
            open_decision.inst: rng.choice(open_decision.options)
            for open_decision in self.sketches[index].open_decisions
            if open_decision.kind is DecisionKind.PARALLEL
        }
        applied = Schedule(self.module, seed=rng.randrange(1, 1 << 30))
        insts = self._with_parallel(index, tuple(parallel.values()))
        self._apply(Trace(insts, {}), applied)
        return Candidate(self.task.id, index, self._applied(index, applied.trace, parallel))

    def schedule(self, candidate: Candidate) -> Any:
        """The schedule of `candidate` before the postprocessors.

        Raises `InvalidCandidate` if TVM cannot apply an instruction, and `RepairedDecision` if it
        applied other decisions than those of the candidate.
        """
        if not 0 <= candidate.sketch < len(self.sketches):
            raise InvalidCandidate(f"the task has no sketch {candidate.sketch}")
        open_decisions = self.sketches[candidate.sketch].open_decisions
        parallel = {
            s.inst: d[0]
            for s, d in zip(open_decisions, candidate.decisions, strict=True)
            if s.kind is DecisionKind.PARALLEL
        }
        insts = self._with_parallel(candidate.sketch, tuple(parallel.values()))
        schedule = Schedule(self.module, seed=_SEED)
        decisions = self._tvm_decisions(insts, candidate, 0 in parallel.values())
        self._apply(Trace(insts, decisions), schedule)
        applied = self._applied(candidate.sketch, schedule.trace, parallel)
        if applied != candidate.decisions:
            raise RepairedDecision(_differences(candidate.decisions, applied))
        return schedule

    def finish(self, candidate: Candidate) -> Any:
        """The schedule of `candidate` after the postprocessors. Raises `InvalidCandidate`."""
        schedule = self.schedule(candidate)
        applying.finish(schedule, self.task.target)
        return schedule

    def accepts(self, candidate: Candidate) -> bool:
        """Whether TVM applies `candidate`, postprocessors included."""
        try:
            self.finish(candidate)
        except InvalidCandidate:
            return False
        return True

    def finish_stored(self, candidate: Candidate) -> Any | None:
        """As `finish`, for a candidate that another version may have written; None: refused."""
        try:
            return self.finish(candidate)
        except (InvalidCandidate, IndexError, ValueError):  # it may not fit the sketches
            return None

    def makes(self, candidate: Candidate, digest: str) -> bool:
        """Whether TVM makes the program with this `module_hash` from a stored `candidate`."""
        schedule = self.finish_stored(candidate)
        return schedule is not None and module_hash(schedule.mod) == digest

    def trace_json(self, candidate: Candidate) -> str:
        """The trace of `candidate` before the postprocessors, in the JSON form of MetaSchedule."""
        insts, _ = self._plain[candidate.sketch]
        dropped = -1
        insts = list(insts)
        decisions: list[tuple[int, Any]] = []
        open_decisions = self.sketches[candidate.sketch].open_decisions
        for open_decision, decision in zip(open_decisions, candidate.decisions, strict=True):
            if open_decision.kind is DecisionKind.PARALLEL:
                kind, inputs, attrs, outputs = insts[open_decision.inst]
                insts[open_decision.inst] = [kind, [inputs[0], decision[0]], attrs, outputs]
                dropped = open_decision.inst if decision[0] == 0 else dropped
            else:
                single = open_decision.kind in (DecisionKind.CATEGORY, DecisionKind.LOCATION)
                decisions.append((open_decision.inst, decision[0] if single else list(decision)))
        if dropped >= 0:
            del insts[dropped]
            decisions = [(i - (i > dropped), d) for i, d in decisions]
        return json.dumps([insts, decisions], separators=(",", ":"))

    def trace(self, sketch: int) -> Any:
        """The TVM trace of a sketch, with the decisions that TVM sampled when it built it."""
        return self._traces[sketch]

    def locations(self, sketch: int, before: tuple[Decision, ...]) -> tuple[int, ...]:
        """The legal compute locations of decision ``len(before)``, given the decisions before it.

        In ascending order: -2 (inline) if the block can be inlined, -1 (root), loop indices.
        """
        return self._locations.legal(sketch, before)

    def quick_locations(self, sketch: int, before: tuple[Decision, ...]) -> tuple[int, ...]:
        """As `locations`, for writing many candidates: a few legal ones may be missing.

        Where the answer takes TVM long, after some questions only root is left.
        """
        return self._locations.quick(sketch, before)

    def _draw(self, rng: Random, sketch: int) -> tuple[Decision, ...]:
        return self.random(rng, sketch).decisions

    def _nest(self, sketch: Sketch) -> TiledNest | None:
        return tiled_nest(sketch, self._plain[sketch.index], self.computation)

    def _probe(self, sketch: int, before: tuple[Decision, ...]) -> tuple[int, ...]:
        """Find all legal locations. TVM replaces an illegal one by the next lower legal one."""
        open_decision = self.sketches[sketch].open_decisions[len(before)]
        insts = self._insts[sketch][: open_decision.inst + 1]
        partial = Candidate(self.task.id, sketch, (*before, (-1,)))
        schedule = Schedule(self.module, seed=_SEED)
        blocks: list[Any] = []

        def provide(inst: Instruction, inputs: Any, _attrs: Any, decision: Any) -> Any:
            if inst.kind.name == "SampleComputeLocation":
                blocks[:] = [inputs[0]]
            return decision

        trace = Trace(insts, self._tvm_decisions(insts, partial, dropped=False))
        self._apply(trace, schedule, provide)
        locations: list[int] = []
        guess = _MAX_LOOP
        while guess >= -2:
            schedule.sample_compute_location(blocks[0], decision=guess)
            legal = int(schedule.trace.get_decision(schedule.trace.insts[-1]))
            if locations and legal >= locations[-1]:
                break
            locations.append(legal)
            guess = legal - 1
        return tuple(reversed(locations))

    def _apply(self, trace: Trace, schedule: Schedule, provider: Any = None) -> None:
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True, decision_provider=provider)
        except applying.TVM_ERRORS as error:
            raise InvalidCandidate(applying.first_line(error)) from error

    def _tvm_decisions(
        self, insts: list[Any], candidate: Candidate, dropped: bool
    ) -> dict[Any, Any]:
        """Decisions by instruction object. `dropped`: `insts` lacks the parallel annotation."""
        by_inst = {}
        at = self._positions(candidate.sketch, dropped)
        open_decisions = self.sketches[candidate.sketch].open_decisions
        for open_decision, decision in zip(open_decisions, candidate.decisions, strict=False):
            if open_decision.kind is not DecisionKind.PARALLEL:
                single = open_decision.kind in (DecisionKind.CATEGORY, DecisionKind.LOCATION)
                by_inst[insts[at[open_decision.inst]]] = decision[0] if single else list(decision)
        return by_inst

    def _applied(self, sketch: int, trace: Trace, parallel: dict[int, int]) -> tuple[Decision, ...]:
        """The decisions in the trace of a schedule, which TVM has applied."""
        insts = trace.insts
        at = self._positions(sketch, 0 in parallel.values())
        decisions: list[Decision] = []
        for open_decision in self.sketches[sketch].open_decisions:
            if open_decision.kind is DecisionKind.PARALLEL:
                decisions.append((parallel[open_decision.inst],))
                continue
            value = trace.get_decision(insts[at[open_decision.inst]])
            single = open_decision.kind in (DecisionKind.CATEGORY, DecisionKind.LOCATION)
            decisions.append((int(value),) if single else tuple(map(int, value)))
        return tuple(decisions)

    def _positions(self, sketch: int, dropped: bool) -> dict[int, int]:
        """The new position of each instruction if the parallel annotation is `dropped`."""
        open_decisions = self.sketches[sketch].open_decisions
        removed = (
            [s.inst for s in open_decisions if s.kind is DecisionKind.PARALLEL] if dropped else []
        )
        return {s.inst: s.inst - sum(r < s.inst for r in removed) for s in open_decisions}

    @functools.lru_cache(maxsize=64)  # noqa: B019 - a space lives as long as its cache
    def _with_parallel(self, sketch: int, extents: tuple[int, ...]) -> list[Any]:
        """The instructions with this parallel extent; extent 0 drops the annotation."""
        insts = list(self._insts[sketch])
        for open_decision in self.sketches[sketch].open_decisions:
            if open_decision.kind is DecisionKind.PARALLEL:
                old = insts[open_decision.inst]
                insts[open_decision.inst] = Instruction(
                    old.kind, [old.inputs[0], extents[0]], old.attrs, old.outputs
                )
                if extents[0] == 0:
                    del insts[open_decision.inst]
        return insts


def module_hash(module: IRModule) -> str:
    """Structural hash of a final module on this platform, which finds equal programs."""
    return f"{tvm_ffi.structural_hash(module) & (2**64 - 1):016x}"


__all__ = ["InvalidCandidate", "RepairedDecision", "TaskSpace", "module_hash"]
