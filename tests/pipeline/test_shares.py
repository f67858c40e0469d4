"""Jobs share the measuring by their weights, and higher priorities come first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pipeline_run import Run
from tests.support.simulated import SimulatedWorkerPool, options, task
from tlmd.daemon.job_documents import make_spec, to_job
from tlmd.data.errors import BadInput
from tlmd.data.types import JobState
from tlmd.pipeline.task_scheduler import TaskScheduler
from tlmd.pipeline.task_state import TaskState
from tlmd.pipeline.tuning_jobs import TuningJob

BATCH, PER_TASK = 32, 8
WEIGHTS = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12)


def _job(name: str, weight: float = 1.0, priority: int = 0, tasks: int = 6) -> TuningJob:
    job = TuningJob(name, trials=0, weight=weight, priority=priority)
    for number in range(tasks):
        job.add(TaskState(task(f"{name}/{number}"), []), 1)
    return job


def _serve(scheduler: TaskScheduler, jobs: list[TuningJob], batches: int) -> Counter[str]:
    given_out: Counter[str] = Counter()
    for _ in range(batches):
        for one in scheduler.allocate(jobs, BATCH, PER_TASK):
            given_out[one.job.id] += one.count
    return given_out


@given(WEIGHTS, st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_shares_are_those_of_the_weights_within_one_batch(
    weights: list[float], batches: int
) -> None:
    jobs = [_job(f"j{i}", weight) for i, weight in enumerate(weights)]
    given_out = _serve(TaskScheduler(), jobs, batches)
    assert sum(given_out.values()) == batches * BATCH
    for job in jobs:
        due = batches * BATCH * job.weight / sum(weights)
        assert abs(given_out[job.id] - due) <= BATCH


def test_none_of_ten_jobs_starves() -> None:
    jobs = [_job(f"j{i}") for i in range(10)]
    given_out = _serve(TaskScheduler(), jobs, 50)
    assert set(given_out.values()) == {50 * BATCH // 10}


def test_a_higher_priority_gets_all_that_it_can_use() -> None:
    low, high = _job("low", weight=100.0), _job("high", priority=1)
    scheduler = TaskScheduler()
    assert _serve(scheduler, [low, high], 10) == {"high": 10 * BATCH}
    for one in high.tasks:
        one.exhausted = True
    assert _serve(scheduler, [low, high], 1) == {"low": BATCH}


def test_a_job_that_comes_later_or_wanted_nothing_gets_its_share_from_then_on() -> None:
    first, second, late = _job("first"), _job("second"), _job("late")
    scheduler = TaskScheduler()
    for one in second.tasks:
        one.exhausted = True
    assert _serve(scheduler, [first, second], 10) == {"first": 10 * BATCH}
    for one in second.tasks:
        one.exhausted = False
    given_out = _serve(scheduler, [first, second, late], 30)
    assert all(abs(n - 10 * BATCH) <= BATCH for n in given_out.values()) and len(given_out) == 3


def test_ten_jobs_end_side_by_side_in_the_pipeline() -> None:
    names = [f"t{i}" for i in range(10)]
    pool = SimulatedWorkerPool(dict.fromkeys(names, 100))
    run = Run(options(batch=8, per_task=4, train=False), pool)
    jobs = [run.add(TuningJob(name, trials=12), name) for name in names]
    while not any(job.state.is_finished for job in jobs):
        run.pipeline.step(1.0)
    assert min(job.measured_now for job in jobs) >= 4
    run.until_idle()
    assert all(job.state is JobState.DONE for job in jobs)


def test_a_request_says_priority_and_weight() -> None:
    spec = make_spec({"model": "resnet18", "priority": 2, "weight": 0.5})
    job = to_job(spec)
    assert (job.priority, job.weight) == (2, 0.5)
    usual = make_spec({"model": "resnet18"}).request
    assert (usual.priority, usual.weight) == (0, 1.0)
    for bad in ({"priority": "high"}, {"priority": 1000}, {"weight": 0}, {"weight": float("nan")}):
        with pytest.raises(BadInput, match=next(iter(bad))):
            make_spec({"model": "resnet18", **bad})
