"""The tuning loop against a simulated writer and device."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlmd.pipeline.tuning import Progress, TaskState, Tuning
from tlmd.types import Baseline, Candidate, Outcome, Record, Status, TargetInfo, Task

TARGET = TargetInfo("{}", "cpu", "x86_64", "avx2", 256, 1, 1, 1, 1, "here")


@dataclass(frozen=True)
class Note:
    candidate: Candidate
    module_hash: str
    version: int = 0


@dataclass
class SimulatedWriter:
    """Writes 1, 2, 3, ... for each task, `sizes` programs in all, every fifth one refused."""

    sizes: dict[str, int]
    calls: list[tuple[str, int]] = field(default_factory=list)
    learned: int = 0

    def write(
        self, task: Task, count: int, records: list[Record]
    ) -> tuple[list[Note], list[Record]]:
        self.calls.append((task.id, count))
        known = {r.candidate.decisions for r in records}
        notes: list[Note] = []
        refused: list[Record] = []
        for number in range(self.sizes[task.id]):
            candidate = Candidate(task.id, 0, ((number,),))
            if candidate.decisions in known or len(notes) >= count:
                continue
            if number % 5 == 4:
                outcome = Outcome(Status.INVALID, detail="refused")
                refused.append(Record(candidate, outcome, fingerprint="here"))
            else:
                notes.append(Note(candidate, f"{task.id}{number}"))
        return notes, refused

    def learn(self, measured: Sequence[tuple[Task, list[Record]]]) -> None:
        self.learned += 1


@dataclass
class SimulatedDevice:
    measured: list[str] = field(default_factory=list)
    delay: float = 0.0

    def baseline(self, task: Task) -> Baseline:
        return Baseline(task.id, 1.0, "here")

    def measure(
        self, task: Task, proposals: Iterable[Note], incumbent_s: float | None
    ) -> Iterator[tuple[Note, Outcome]]:
        for note in proposals:
            time.sleep(self.delay)
            self.measured.append(note.candidate.id)
            seconds = 0.5 / (1 + note.candidate.decisions[0][0])
            yield note, Outcome(Status.OK, (seconds,), verified=True)


@dataclass
class MemoryStore:
    rows: list[Record] = field(default_factory=list)

    def add_records(self, records: Iterable[Record]) -> None:
        self.rows.extend(records)

    def records(self, task_id: str, fingerprint: str) -> list[Record]:
        return [r for r in self.rows if r.candidate.task_id == task_id]

    def put_baseline(self, baseline: Baseline) -> None:
        pass

    def baseline(self, task_id: str, fingerprint: str) -> Baseline | None:
        return None


def task(name: str, weight: int = 1) -> Task:
    return Task(name, name, weight, 1e6, "", TARGET)


def tuning(sizes: dict[str, int], trials: int, batch: int, store: MemoryStore) -> Tuning:
    states = [TaskState(task(n), store.records(n, "here")) for n in sizes]
    return Tuning(states, SimulatedWriter(sizes), SimulatedDevice(), store, trials, batch)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 40), min_size=1),
    st.integers(1, 20),
    st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_every_task_gets_its_trials_and_nothing_is_measured_twice(
    sizes: dict[str, int], trials: int, batch: int
) -> None:
    store = MemoryStore()
    job = tuning(sizes, trials, batch, store)
    job.run()
    assert isinstance(job.device, SimulatedDevice)
    assert len(set(job.device.measured)) == len(job.device.measured)
    for state in job.states:
        possible = sizes[state.task.id] - sizes[state.task.id] // 5
        assert state.trials == min(trials, possible)


def test_a_job_that_was_stopped_continues_where_it_was() -> None:
    store, sizes = MemoryStore(), {"a": 30, "b": 30}
    first = tuning(sizes, 10, 4, store)
    first.stop = lambda: len(store.rows) > 5
    first.run()
    before = [r.candidate.id for r in store.rows]
    assert 5 < len(before) < 20
    second = tuning(sizes, 10, 4, store)
    second.run()
    after = [r.candidate.id for r in store.rows]
    assert after[: len(before)] == before and len(set(after)) == len(after)
    assert all(s.trials == 10 for s in second.states)
    batches = [r.batch for r in store.rows if r.outcome.ok]
    assert batches == sorted(batches) and batches[len(before) - 1] < batches[-1]


def test_a_deadline_still_gives_every_task_a_program() -> None:
    job = tuning({"a": 30, "b": 30, "c": 30}, 20, 4, MemoryStore())
    job.deadline = time.monotonic() - 1
    job.run()
    assert all(s.best for s in job.states)
    assert sum(s.trials for s in job.states) <= 16


def test_the_next_batch_is_written_while_one_is_measured() -> None:
    writing, overlapped = threading.Event(), []

    class Writer(SimulatedWriter):
        def write(
            self, task: Task, count: int, records: list[Record]
        ) -> tuple[list[Note], list[Record]]:
            writing.set()
            return super().write(task, count, records)

    class Device(SimulatedDevice):
        def measure(
            self, task: Task, proposals: Iterable[Note], incumbent_s: float | None
        ) -> Iterator[tuple[Note, Outcome]]:
            overlapped.append(writing.wait(2.0))
            writing.clear()
            yield from super().measure(task, proposals, incumbent_s)

    sizes = {"a": 12, "b": 12}
    states = [TaskState(task(n), []) for n in sizes]
    Tuning(states, Writer(sizes), Device(), MemoryStore(), trials=8, batch=4).run()
    assert overlapped[:-1] and all(overlapped[:-1])


def test_the_incumbent_and_progress_are_told() -> None:
    seen: list[Progress] = []
    job = tuning({"a": 10}, 8, 2, MemoryStore())
    job.on_progress = seen.append
    job.run()
    assert [p.measured for p in seen] == list(range(1, 9))
    assert seen[-1].done == 1 and seen[-1].planned == 8
    assert seen[-1].estimate_s < seen[0].estimate_s <= seen[0].baseline_s == 1.0


def test_a_failing_writer_is_not_swallowed() -> None:
    class Broken(SimulatedWriter):
        def write(
            self, task: Task, count: int, records: list[Record]
        ) -> tuple[list[Note], list[Record]]:
            raise ValueError("broken")

    job = Tuning([TaskState(task("a"), [])], Broken({}), SimulatedDevice(), MemoryStore(), 4)
    with pytest.raises(ValueError, match="broken"):
        job.run()
