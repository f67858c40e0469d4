"""The loop of one tuning job: propose for a task, measure, learn, next round.

The next batch is written while the current one is measured, so the slot waits for the generator
only at the very start::

    generate  |b0|b1|b2|...
    measure      |b0|b1|b2|...

What batch b taught is used in batch b + 2, as in the paper.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from tlmd.types import Baseline, Candidate, Outcome, Record, Status, Task

_BARREN = 4  # turns without a program, all refused, before a task is given up


class Proposal(Protocol):
    """A candidate worth measuring."""

    @property
    def candidate(self) -> Candidate: ...
    @property
    def module_hash(self) -> str: ...
    @property
    def version(self) -> int: ...


class Writer(Protocol):
    """Writes a batch for one task: proposals to measure, and records of what TVM refused."""

    def write(
        self, task: Task, count: int, records: list[Record]
    ) -> tuple[list[Any], list[Record]]: ...

    def learn(self, measured: Sequence[tuple[Task, list[Record]]]) -> None: ...


class Device(Protocol):
    """Measures: the unscheduled program of a task, and proposals as they come."""

    def baseline(self, task: Task) -> Baseline: ...

    def measure(
        self, task: Task, proposals: Iterable[Any], incumbent_s: float | None
    ) -> Iterator[tuple[Any, Outcome]]: ...


class Store(Protocol):
    """Keeps what was measured; returning means committed."""

    def add_records(self, records: Iterable[Record]) -> None: ...
    def records(self, task_id: str, fingerprint: str) -> list[Record]: ...
    def put_baseline(self, baseline: Baseline) -> None: ...
    def baseline(self, task_id: str, fingerprint: str) -> Baseline | None: ...


@dataclass
class TaskState:
    """What the loop knows of a task: its records (newest per candidate) and whether it is done."""

    task: Task
    records: list[Record]
    baseline: Baseline | None = None
    exhausted: bool = False
    barren: int = 0  # turns in a row without a program to measure

    @property
    def trials(self) -> int:
        """Programs that were really tried on this device; imported records do not count."""
        return sum(r.outcome.status is not Status.INVALID and r.batch >= 0 for r in self.records)

    @property
    def best(self) -> Record | None:
        """The fastest verified record."""
        good = [r for r in self.records if r.outcome.ok and r.outcome.verified]
        return min(good, key=lambda r: r.outcome.seconds, default=None)

    @property
    def best_seconds(self) -> float:
        return self.best.outcome.seconds if self.best else float("inf")


@dataclass(frozen=True)
class Progress:
    """A snapshot for displays: one is sent after every measured candidate.

    ``measured`` counts what earlier runs left as well, ``measured_now`` does not, ``planned`` is
    what is measured at the most. ``estimate_s`` and ``baseline_s`` are weighted sums of the best
    and of the unscheduled times.
    """

    task: str
    done: int
    total: int
    measured: int
    measured_now: int
    planned: int
    failed: int
    estimate_s: float
    baseline_s: float
    elapsed_s: float


@dataclass
class Tuning:
    """Runs `trials` measurements per task, in rounds of `batch`; resumes from what is stored.

    `deadline` (monotonic seconds) and `stop` end it early; every batch in flight is finished first.
    """

    states: list[TaskState]
    writer: Writer
    device: Device
    store: Store
    trials: int
    batch: int = 8
    deadline: float | None = None
    stop: Callable[[], bool] = lambda: False
    on_progress: Callable[[Progress], None] = lambda progress: None
    _started: float = field(default_factory=time.monotonic)
    _number: int = 0
    _measured: int = 0

    def run(self) -> None:
        """Measure until every task has its trials or the job is stopped."""
        # Batches are numbered on over all runs of a store.
        self._number = max((r.batch for s in self.states for r in s.records), default=0)
        with ThreadPoolExecutor(1, "generate") as pool:
            ahead: Future[Any] | None = None
            turn: TaskState | None = None
            for following in self._turns():
                if self._over():
                    return  # what is written but not yet measured is given up
                written = pool.submit(self._write, following)
                if ahead is not None and turn is not None:
                    self._measure(turn, ahead.result())
                ahead, turn = written, following
            if ahead is not None and turn is not None and not self._over():
                self._measure(turn, ahead.result())

    def _turns(self) -> Iterator[TaskState]:
        """Whose turn is next: rounds over the tasks with trials left, the heaviest first."""
        while True:
            waiting = [s for s in self.states if s.trials < self.trials and not s.exhausted]
            if not waiting:
                return
            for state in sorted(waiting, key=self._weight, reverse=True):
                # The turn before may have settled this one since the round began.
                if state.trials < self.trials and not state.exhausted:
                    yield state

    @staticmethod
    def _weight(state: TaskState) -> float:
        seconds = state.best_seconds
        if seconds == float("inf"):
            seconds = state.task.flops
        return state.task.weight * seconds

    def _write(self, state: TaskState) -> tuple[list[Any], list[Record]]:
        """Runs beside the measuring of the batch before, on what is known by now."""
        self.writer.learn([(s.task, list(s.records)) for s in self.states if s.trials > 1])
        count = max(1, min(self.batch, self.trials - state.trials))
        # What was only imported may be written again: it has to be verified here.
        return self.writer.write(state.task, count, [r for r in state.records if r.batch >= 0])

    def _measure(self, state: TaskState, written: tuple[list[Any], list[Record]]) -> None:
        proposals, refused = written
        ids = {r.candidate.id for r in state.records}
        refused = [r for r in refused if r.candidate.id not in ids]
        self._keep(state, refused)
        if state.baseline is None:
            state.baseline = self._baseline(state.task)
        state.barren = 0 if proposals else state.barren + 1
        # A large space of which TVM refuses everything must not keep the job from ending.
        state.exhausted = state.barren > (_BARREN if refused else 0)
        self._number += 1
        incumbent = state.best.outcome.seconds if state.best else None
        fresh = self._fresh(state, proposals)
        for proposal, outcome in self.device.measure(state.task, fresh, incumbent):
            self._keep(state, [self._record(state.task, proposal, outcome)])
            self._measured += 1
            self.on_progress(self._progress(state))

    def _fresh(self, state: TaskState, proposals: list[Any]) -> list[Any]:
        """Drop what the batch before, unknown to the writer, has measured meanwhile."""
        own = [r for r in state.records if r.batch >= 0]
        ids = {r.candidate.id for r in own}
        hashes = {r.module_hash for r in own if r.module_hash}
        fresh = [p for p in proposals if p.candidate.id not in ids and p.module_hash not in hashes]
        return fresh[: self.trials - state.trials]

    def _baseline(self, task: Task) -> Baseline:
        known = self.store.baseline(task.id, task.target.fingerprint)
        if known is None:
            known = self.device.baseline(task)
            if math.isfinite(known.seconds):  # a failure may pass; the next run tries again
                self.store.put_baseline(known)
        return known

    def _record(self, task: Task, proposal: Proposal, outcome: Outcome) -> Record:
        return Record(
            proposal.candidate,
            outcome,
            version=proposal.version,
            batch=self._number,
            fingerprint=task.target.fingerprint,
            module_hash=proposal.module_hash,
            created=time.time(),
        )

    def _keep(self, state: TaskState, records: list[Record]) -> None:
        if records:
            self.store.add_records(records)
            state.records.extend(records)

    def _over(self) -> bool:
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return self.stop() or (late and all(s.best for s in self.states))

    def _progress(self, current: TaskState) -> Progress:
        done = sum(s.exhausted or s.trials >= self.trials for s in self.states)
        timed = [s for s in self.states if s.best is not None and s.baseline is not None]
        records = [r for s in self.states for r in s.records]
        return Progress(
            current.task.name,
            done,
            len(self.states),
            sum(s.trials for s in self.states),
            self._measured,
            sum(s.trials if s.exhausted else self.trials for s in self.states),
            sum(not r.outcome.ok for r in records),
            sum(s.task.weight * s.best_seconds for s in timed),
            sum(s.task.weight * s.baseline.seconds for s in timed if s.baseline),
            time.monotonic() - self._started,
        )
