"""Compiles a loaded model in this process with the best programs that are known now."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from tlmd.data.errors import TlmdError
from tlmd.data.types import Candidate, Proposal, Record, TargetInfo, Task
from tlmd.export.huge_pages import in_huge_pages
from tlmd.export.library import Library
from tlmd.lowering import lowering
from tlmd.lowering.alternatives import substitute, with_alternatives
from tlmd.lowering.preparation import LoweredModel
from tlmd.records import metaschedule_files
from tlmd.records.store import RecordStore
from tlmd.space.hardware import target as targets
from tlmd.space.space import TaskSpace
from tlmd.tlm.torch_settings import one_thread

COMPILING = threading.RLock()
"""Held while something is exported or compiled: PyTorch's and TVM's tables are for one thread."""

_GUESSED_S = 1.0  # the time of a program that was not measured: any record is better


@dataclass(frozen=True)
class CompiledHere:
    """A model compiled in this process."""

    library: Library

    unknown: int
    """Tasks for which there is no record: their programs are the TLM's first choice."""


class ProgramSource:
    """Finds a program for each task: the best record in `state_dir`, or the TLM's first choice.

    Guesses are kept, so that a model compiled again costs no writing. Not thread-safe.
    """

    def __init__(self, state_dir: Path) -> None:
        self._records = state_dir / "records.sqlite"
        self._generator: Any = None
        self._guesses: dict[str, Candidate | None] = {}
        self._traces: dict[tuple[str, str], str] = {}

    def compile(self, model: LoweredModel, target: TargetInfo) -> CompiledHere:
        """Compile a lowered model. Raises the errors of TVM."""
        spec = model.spec
        tasks = with_alternatives(model.tasks, spec.strict_numerics, spec.precision)
        best = self._best(tasks)
        chosen = _fastest(tasks, best)
        database = ms.database.MemoryDatabase(module_equality="structural")
        tvm_target = targets.tvm_target(target)
        for direct in model.tasks:
            task = chosen.get(direct.id, direct)
            record = best.get(task.id)
            if record is not None:
                trace, seconds = (
                    TaskSpace(task).trace_json(record.candidate),
                    record.outcome.seconds,
                )
            else:
                trace, seconds = self._guess(task), _GUESSED_S
            if trace:
                metaschedule_files.commit(database, task, trace, seconds, tvm_target)
        lowered = substitute(model.lowered, {k: t for k, t in chosen.items() if t.alternative})
        compiled = lowering.compile_model(lowered, tvm_target, database)
        with in_huge_pages():
            machine = relax.VirtualMachine(compiled.executable.jit(), tvm.cpu())
        unknown = sum(task.id not in chosen for task in model.tasks)
        return CompiledHere(Library(machine, model.source.inputs), unknown)

    def _best(self, tasks: list[Task]) -> dict[str, Record]:
        """The best verified record of each task that has one faster than TVM's default."""
        fastest: dict[str, Record] = {}
        try:
            with RecordStore(self._records, read_only=True) as store:
                for task in tasks:
                    record, baseline = store.best(*task.key), store.baseline(*task.key)
                    limit = baseline.seconds if baseline else math.inf
                    if record is not None and record.outcome.seconds <= limit:
                        fastest[task.id] = record
        except TlmdError:  # nothing was measured yet
            return {}
        return fastest

    def _guess(self, task: Task) -> str:
        """The trace of the TLM's first choice, unmeasured; empty if there is nothing to choose.

        Tasks of one id may name their blocks differently, and a trace holds the names.
        """
        key = (task.id, task.module)
        if key not in self._traces:
            if task.id not in self._guesses:
                proposal = self.propose(task)
                self._guesses[task.id] = proposal.candidate if proposal else None
                self._traces[key] = proposal.trace if proposal else ""
            else:
                candidate = self._guesses[task.id]
                self._traces[key] = TaskSpace(task).trace_json(candidate) if candidate else ""
        return self._traces[key]

    def propose(self, task: Task) -> Proposal | None:
        """The TLM's first choice; None if it writes nothing for the task."""
        if self._generator is None:
            from tlmd.generate.generator import Generator
            from tlmd.tlm import checkpoint

            self._generator = Generator(checkpoint.load())
        with one_thread():
            proposals, _ = self._generator.write(task, 1, [])
        return proposals[0] if proposals else None


def _fastest(tasks: list[Task], best: dict[str, Record]) -> dict[str, Task]:
    """The alternative with the fastest record, by the id of the direct task."""
    measured = sorted(
        (task for task in tasks if task.id in best),
        key=lambda task: best[task.id].outcome.seconds,
        reverse=True,
    )
    return {task.computation: task for task in measured}
