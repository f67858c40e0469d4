"""What the pipeline's thread does at each step does not grow with jobs, slots and records."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pipeline_run import Run
from tests.support.simulated import SimulatedWorkerPool, options, task
from tlmd.data.selection import fastest, leading
from tlmd.data.types import Candidate, Outcome, Record, Status
from tlmd.pipeline.measuring import Measuring
from tlmd.pipeline.task_state import INCUMBENTS, TaskState
from tlmd.pipeline.tuning_jobs import TuningJob


def _count(monkeypatch: pytest.MonkeyPatch, cls: type, name: str) -> Counter[str]:
    """How often a method is called from now on."""
    calls: Counter[str] = Counter()
    original = getattr(cls, name)

    def counted(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return original(*arguments, **named)

    monkeypatch.setattr(cls, name, counted)
    return calls


def test_a_step_looks_only_at_jobs_to_which_something_has_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"t{i}" for i in range(200)]
    pool = SimulatedWorkerPool(dict.fromkeys(names, 50))
    run = Run(options(batch=4, per_task=2, chunk=2, train=False), pool)
    for name in names:
        run.add(TuningJob(name, trials=8), name)
    calls = _count(monkeypatch, TuningJob, "update")
    begin, steps = run.pool.time, 400
    for _ in range(steps):
        run.pipeline.step(0.05)
    seconds = run.pool.time - begin
    assert calls["update"] < 2 * steps + len(names) * (seconds + 2) < steps * len(names) / 4


def test_slots_without_work_are_not_all_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(options(train=False), SimulatedWorkerPool({"a": 60}, slots=50))
    run.add(TuningJob("j", trials=1), "a")
    calls = _count(monkeypatch, Measuring, "_next")
    steps = 0
    while not run.pipeline.is_idle:
        run.pipeline.step(0.1)
        steps += 1
    assert calls["_next"] < 3 * steps + 60 < 50 * steps


outcomes = st.tuples(st.floats(0.1, 9.0), st.booleans(), st.booleans(), st.integers(0, 2))


@given(st.lists(st.lists(outcomes, max_size=6), max_size=8), st.integers(0, 8))
@settings(deadline=None)
def test_the_best_records_kept_are_those_of_all_records(
    parts: list[list[tuple[float, bool, bool, int]]], replaced: int
) -> None:
    state = TaskState(task("a"), [])
    for number, part in enumerate(parts):
        records = []
        for i, (seconds, verified, compared, created) in enumerate(part):
            outcome = Outcome(
                Status.OK,
                (seconds,),
                verified=verified,
                compared=compared,
                low=0.9 * seconds,
                high=1.1 * seconds,
            )
            candidate = Candidate("a", 0, ((number, i % 5),))
            records.append(Record(candidate, outcome, batch=i % 3 - 1, created=float(created)))
        (state.replace if number == replaced else state.add)(records)
        assert state.best is fastest(state.own)
        assert state.fastest == leading(state.own, INCUMBENTS)
