"""`TaskSpace`: the sketches of one task, and candidates of them as scheduled modules."""

from __future__ import annotations

import functools
import json
from random import Random
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import Schedule, Trace
from tvm.s_tir.schedule import Instruction

from tlmd.space import schedule as applying
from tlmd.space.describe import block_names, describe
from tlmd.space.locations import Locations, TiledNest, tiled_nest
from tlmd.space.schedule import InvalidCandidate, RepairedDecision
from tlmd.space.sketches import PlainTrace, plain_trace, read_sketch
from tlmd.space.target import tvm_target
from tlmd.types import Candidate, Computation, Decision, Sketch, SlotKind, Task

# The rules sample while they build sketches; a fixed seed makes the list of sketches stable.
_SEED = 1
_MAX_LOOP = 1 << 20


class TaskSpace:
    """The design space of one task.

    `computation` describes the task for the prompt, `sketches` lists its design spaces. A task
    without anything to decide still has one sketch.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.module = tvm.ir.load_json(task.module)
        self.computation: Computation = describe(self.module)
        self._context = applying.context(tvm_target(task.target), self.module, _SEED)
        names = block_names(self.module)
        self._traces = [s.trace for s in self._context.generate_design_space()]
        self._insts = [list(t.insts) for t in self._traces]
        self._plain: list[PlainTrace] = [plain_trace(t) for t in self._traces]
        self.sketches: tuple[Sketch, ...] = tuple(
            read_sketch(i, plain, names, task.target) for i, plain in enumerate(self._plain)
        )
        nests = tuple(map(self._nest, self.sketches))
        self._locations = Locations(self.sketches, nests, self._probe, self._draw)

    def random(self, rng: Random, sketch: int | None = None) -> Candidate:
        """A candidate drawn by TVM's own sampler (uniform sketch and parallel extent)."""
        index = rng.randrange(len(self.sketches)) if sketch is None else sketch
        parallel = {
            slot.inst: rng.choice(slot.options)
            for slot in self.sketches[index].slots
            if slot.kind is SlotKind.PARALLEL
        }
        applied = Schedule(self.module, seed=rng.randrange(1, 1 << 30))
        insts = self._with_parallel(index, tuple(parallel.values()))
        self._apply(Trace(insts, {}), applied)
        return Candidate(self.task.id, index, self._applied(index, applied.trace, parallel))

    def schedule(self, candidate: Candidate) -> Any:
        """The schedule of `candidate` before the postprocessors.

        Raises `InvalidCandidate` where TVM cannot apply an instruction and `RepairedDecision` where
        it applied something else than was decided.
        """
        slots = self.sketches[candidate.sketch].slots
        parallel = {
            s.inst: d[0]
            for s, d in zip(slots, candidate.decisions, strict=True)
            if s.kind is SlotKind.PARALLEL
        }
        insts = self._with_parallel(candidate.sketch, tuple(parallel.values()))
        schedule = Schedule(self.module, seed=_SEED)
        decisions = self._tvm_decisions(insts, candidate, 0 in parallel.values())
        self._apply(Trace(insts, decisions), schedule)
        applied = self._applied(candidate.sketch, schedule.trace, parallel)
        if applied != candidate.decisions:
            raise RepairedDecision(f"decided {candidate.decisions}, TVM applied {applied}")
        return schedule

    def finish(self, candidate: Candidate) -> Any:
        """The schedule of `candidate`, postprocessors included; raises `InvalidCandidate`."""
        schedule = self.schedule(candidate)
        applying.finish(schedule, self.task.target)
        return schedule

    def trace_json(self, candidate: Candidate) -> str:
        """The trace of `candidate` before the postprocessors, as MetaSchedule writes it."""
        insts, _ = self._plain[candidate.sketch]
        dropped = -1
        insts = list(insts)
        decisions: list[tuple[int, Any]] = []
        slots = self.sketches[candidate.sketch].slots
        for slot, decision in zip(slots, candidate.decisions, strict=True):
            if slot.kind is SlotKind.PARALLEL:
                kind, inputs, attrs, outputs = insts[slot.inst]
                insts[slot.inst] = [kind, [inputs[0], decision[0]], attrs, outputs]
                dropped = slot.inst if decision[0] == 0 else dropped
            else:
                single = slot.kind in (SlotKind.CATEGORY, SlotKind.LOCATION)
                decisions.append((slot.inst, decision[0] if single else list(decision)))
        if dropped >= 0:
            del insts[dropped]
            decisions = [(i - (i > dropped), d) for i, d in decisions]
        return json.dumps([insts, decisions], separators=(",", ":"))

    def trace(self, sketch: int) -> Any:
        """The TVM trace of a sketch, with the decisions that were sampled when it was made."""
        return self._traces[sketch]

    def locations(self, sketch: int, before: tuple[Decision, ...]) -> tuple[int, ...]:
        """The legal compute locations of slot ``len(before)``, given the decisions before it.

        Ascending: -2 (inline) where the block can be inlined, -1 (root), loop indices.
        """
        return self._locations.legal(sketch, before)

    def _draw(self, rng: Random, sketch: int) -> tuple[Decision, ...]:
        return self.random(rng, sketch).decisions

    def _nest(self, sketch: Sketch) -> TiledNest | None:
        return tiled_nest(sketch, self._plain[sketch.index], self.computation)

    def _probe(self, sketch: int, before: tuple[Decision, ...]) -> tuple[int, ...]:
        """Ask TVM for every legal location: it snaps a decision down to the next legal one."""
        slot = self.sketches[sketch].slots[len(before)]
        insts = self._insts[sketch][: slot.inst + 1]
        partial = Candidate(self.task.id, sketch, (*before, (-1,)))
        schedule = Schedule(self.module, seed=_SEED)
        blocks: list[Any] = []

        def provide(inst: Any, inputs: Any, _attrs: Any, decision: Any) -> Any:
            if inst.kind.name == "SampleComputeLocation":
                blocks[:] = [inputs[0]]
            return decision

        trace = Trace(insts, self._tvm_decisions(insts, partial, dropped=False))
        self._apply(trace, schedule, provide)
        found: list[int] = []
        guess = _MAX_LOOP
        while guess >= -2:
            schedule.sample_compute_location(blocks[0], decision=guess)
            legal = int(schedule.trace.get_decision(schedule.trace.insts[-1]))
            if found and legal >= found[-1]:
                break
            found.append(legal)
            guess = legal - 1
        return tuple(reversed(found))

    def _apply(self, trace: Any, schedule: Any, provider: Any = None) -> None:
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True, decision_provider=provider)
        except applying.TVM_ERRORS as error:
            raise InvalidCandidate(applying.first_line(error)) from error

    def _tvm_decisions(
        self, insts: list[Any], candidate: Candidate, dropped: bool
    ) -> dict[Any, Any]:
        """Decisions keyed by instruction object; `dropped`: the parallel annotation is left out."""
        by_inst = {}
        at = self._positions(candidate.sketch, dropped)
        slots = self.sketches[candidate.sketch].slots
        for slot, decision in zip(slots, candidate.decisions, strict=False):
            if slot.kind is not SlotKind.PARALLEL:
                single = slot.kind in (SlotKind.CATEGORY, SlotKind.LOCATION)
                by_inst[insts[at[slot.inst]]] = decision[0] if single else list(decision)
        return by_inst

    def _applied(self, sketch: int, trace: Any, parallel: dict[int, int]) -> tuple[Decision, ...]:
        """The decisions that TVM put into the trace of a schedule."""
        insts = trace.insts
        at = self._positions(sketch, 0 in parallel.values())
        decisions: list[Decision] = []
        for slot in self.sketches[sketch].slots:
            if slot.kind is SlotKind.PARALLEL:
                decisions.append((parallel[slot.inst],))
                continue
            value = trace.get_decision(insts[at[slot.inst]])
            single = slot.kind in (SlotKind.CATEGORY, SlotKind.LOCATION)
            decisions.append((int(value),) if single else tuple(map(int, value)))
        return tuple(decisions)

    def _positions(self, sketch: int, dropped: bool) -> dict[int, int]:
        """Where the instruction of each slot stands once the parallel annotation is left out."""
        slots = self.sketches[sketch].slots
        gone = [s.inst for s in slots if s.kind is SlotKind.PARALLEL] if dropped else []
        return {s.inst: s.inst - sum(g < s.inst for g in gone) for s in slots}

    @functools.lru_cache(maxsize=64)  # noqa: B019 - a space lives as long as its cache
    def _with_parallel(self, sketch: int, extents: tuple[int, ...]) -> list[Any]:
        """The instructions with the parallel extent put in; without the annotation for 0."""
        insts = list(self._insts[sketch])
        for slot in self.sketches[sketch].slots:
            if slot.kind is SlotKind.PARALLEL:
                old = insts[slot.inst]
                insts[slot.inst] = Instruction(
                    old.kind, [old.inputs[0], extents[0]], old.attrs, old.outputs
                )
                if extents[0] == 0:
                    del insts[slot.inst]
        return insts


def module_hash(module: Any) -> str:
    """Structural hash of a final module on this platform: equal programs are never built twice."""
    return f"{tvm_ffi.structural_hash(module) & (2**64 - 1):016x}"


__all__ = ["InvalidCandidate", "RepairedDecision", "TaskSpace", "module_hash"]
