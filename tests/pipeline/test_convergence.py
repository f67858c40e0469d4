"""Each campaign has a convergence of its own, which outlives a restart and can be reached."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.support.pipeline_run import Run
from tests.support.simulated import MemoryStore, SimulatedWorkerPool, options, task
from tlmd.data.types import Baseline, Candidate, JobState, Outcome, Record, Status
from tlmd.pipeline.convergence import Convergence
from tlmd.pipeline.task_scheduler import TaskScheduler
from tlmd.pipeline.task_state import TaskState
from tlmd.pipeline.tuning_jobs import TuningJob

PER_TASK = 8


def _campaign(tasks: int) -> TuningJob:
    job = TuningJob("c", trials=0, corpus=True, until_converged=True)
    for number in range(tasks):
        name = f"t{number}"
        job.add(TaskState(task(name), [], Baseline(name, 1.0, "here")), 1)
    return job


def _records(state: TaskState, count: int, batch: int, gain: float) -> list[Record]:
    """Every candidate of some tasks is a little faster than the one before, for ever."""
    found = []
    for number in range(state.trials, state.trials + count):
        seconds = 0.5 * (1 - gain) ** number
        candidate = Candidate(state.task.id, 0, ((number,),))
        outcome = Outcome(Status.OK, (seconds,), verified=True)
        found.append(Record(candidate, outcome, batch=batch, module_hash=candidate.id))
    return found


@pytest.mark.slow
def test_a_campaign_of_a_thousand_tasks_can_converge() -> None:
    """A tenth always promises more than the others, which must be measured all the same."""
    job = _campaign(1000)
    convergence = Convergence.of(job, window=2000, limit=0.01)
    scheduler, greedy = TaskScheduler(), {f"t{number}" for number in range(100)}
    for batch in itertools.count():
        for one in scheduler.allocate([job], 512, PER_TASK):
            gain = 0.03 if one.task.task.id in greedy else 0.0
            one.task.add(_records(one.task, one.count, batch, gain))
            one.task.best_after_batch.append(one.task.best_seconds)
            one.task.newest_batch = batch
            convergence.observe(job.group(one.task.task.id), one.count)
        status = convergence.status(job)
        if status.converged:
            break
        assert status.measured < 60_000, "not reached"
    assert status.measured >= 2 * 1000 * PER_TASK / 2, "each task once, and once more in the window"


def test_a_task_is_never_left_out_for_longer_than_two_rotations() -> None:
    job, scheduler, served = _campaign(40), TaskScheduler(), dict[str, int]()
    for batch in range(120):
        for one in scheduler.allocate([job], 4 * PER_TASK, PER_TASK):
            gain = 0.05 if one.task.task.id < "t15" else 0.0
            one.task.add(_records(one.task, one.count, batch, gain))
            one.task.best_after_batch.append(one.task.best_seconds)
            one.task.newest_batch = batch
            served[one.task.task.id] = batch
        assert batch < 20 or batch - min(served.values()) <= 20
    assert len(served) == 40


def test_two_campaigns_converge_one_by_one() -> None:
    pool = SimulatedWorkerPool({"a": 900, "b": 900, "c": 900})
    run = Run(options(batch=8, per_task=4, window=60, gain=0.2, train=False), pool)
    first = run.add(TuningJob("x", trials=0, corpus=True, until_converged=True), "a")
    second = run.add(TuningJob("y", trials=0, corpus=True, until_converged=True), "b", "c")
    while not first.state.is_finished:
        run.pipeline.step(1.0)
    assert first.reason == "converged" and first.convergence and second.convergence
    assert first.convergence.measured == sum(t.trials for t in first.tasks)
    assert second.convergence.measured == sum(t.trials for t in second.tasks)
    run.until_idle()
    assert (second.state, second.reason) == (JobState.DONE, "converged")


def test_what_was_measured_before_a_campaign_ends_it_not() -> None:
    job = _campaign(2)
    job.created = 100.0
    for number, state in enumerate(job.tasks):
        old = (replace(r, created=50.0) for r in _records(state, 30, 0, 0.0))
        new = (replace(r, created=150.0) for r in _records(state, 2 + number, 1, 0.0))
        state.add([*old, *new])
    convergence = Convergence.of(job, window=10, limit=0.5)
    status = convergence.status(job)
    assert status.measured == 5 and not status.converged
    convergence.observe(job.groups[0], 8)
    convergence.observe(job.groups[1], 8)
    assert convergence.status(job).converged  # nothing gained over 16, each task measured


def test_a_restart_goes_on_with_the_same_convergence() -> None:
    store, before = MemoryStore(), None
    for limit in (0, 300):
        pool = SimulatedWorkerPool({"a": 900, "b": 900})
        run = Run(options(batch=8, per_task=4, window=200, gain=1e-6, train=False), pool, store)
        job = run.add(TuningJob("c", trials=0, corpus=True, until_converged=True), "a", "b")
        assert job.convergence is not None
        if before is not None:
            status = job.convergence.status(job)
            assert status.measured == len(run.measured()) == before.measured
            assert status.gain == before.gain
        while len(run.measured()) < 300 + limit:
            run.pipeline.step(1.0)
        before = job.convergence.status(job)
        assert before.gain is not None
