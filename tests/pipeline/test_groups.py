"""Alternatives of one computation share its trials, and the fastest one gets most of them."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pipeline_run import Run
from tests.support.simulated import MemoryStore, SimulatedWorkerPool, options, task
from tlmd.data.types import Candidate, JobState, Outcome, Record, Status, Task
from tlmd.pipeline.loop import Pipeline
from tlmd.pipeline.orders import CompareOrder
from tlmd.pipeline.task_groups import TaskGroup
from tlmd.pipeline.task_state import EARLIER, TaskState
from tlmd.pipeline.tuning_jobs import TuningJob

SPEEDS = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=4)


def _measured(state: TaskState, count: int, seconds: float) -> None:
    for _ in range(count):
        number = len(state.records)
        candidate = Candidate(state.task.id, 0, ((number,),))
        # later candidates are a little better
        outcome = Outcome(Status.OK, (seconds * (1 + 1 / (1 + number)),), verified=True)
        state.add([Record(candidate, outcome, module_hash=candidate.id)])
    state.best_after_batch.append(state.best_seconds)


@given(SPEEDS, st.integers(1, 200), st.integers(1, 16))
@settings(deadline=None)
def test_all_trials_are_given_and_the_fastest_gets_most(
    seconds: list[float], trials: int, most: int
) -> None:
    states = [TaskState(task(f"t{i}"), []) for i in range(len(seconds))]
    group = TaskGroup("t0", 1, states)
    while group.claimed < trials:
        state, count = group.next(trials - group.claimed, most)
        assert 1 <= count <= min(most, trials - group.claimed)
        _measured(state, count, seconds[states.index(state)])
    assert group.trials == trials
    counts = [state.trials for state in states]
    if trials >= len(seconds) + 2:
        assert min(counts) >= 1
    fastest = min(range(len(seconds)), key=seconds.__getitem__)
    clear = all(s > 2.5 * seconds[fastest] for i, s in enumerate(seconds) if i != fastest)
    if clear and trials >= 12 * len(seconds):
        assert counts[fastest] == max(counts)
    assert group.best is states[fastest] or min(counts) == 0 or not clear


def test_the_member_with_the_fastest_known_program_is_tried_first() -> None:
    known_s = {"a": math.inf, "b": 2.0, "c": 1.0}
    states = [TaskState(task(name), [], known_s=s) for name, s in known_s.items()]
    assert TaskGroup("a", 1, states).next(1, 1)[0].task.id == "c"
    states[2].exhausted = True
    assert TaskGroup("a", 1, states).next(1, 1)[0].task.id == "b"


def test_a_generator_gets_the_known_programs_of_a_task() -> None:
    candidates = [Candidate("a", 0, ((number,),)) for number in range(6)]

    def known(asked: Task) -> list[tuple[float, Candidate]]:
        return [(1e-3, c) for c in candidates] if asked.id == "a" else []

    pipeline = Pipeline(SimulatedWorkerPool({}), MemoryStore(), known=known)
    state = pipeline.state.task(task("a"))
    assert state.earlier == tuple(candidates[:EARLIER]) and state.known_s == 1e-3
    other = pipeline.state.task(task("b"))
    assert other.earlier == () and other.known_s == math.inf


def test_a_job_measures_a_group_as_one_task() -> None:
    pool = SimulatedWorkerPool({"a": 60, "b": 60, "c": 60, "z": 60})
    run = Run(options(batch=8, per_task=4, train=False), pool)
    job = TuningJob("j", trials=16)
    direct = task("a")
    others = [replace(task(name), group="a", alternative=name) for name in ("b", "c")]
    run.pipeline.add_job(job, [direct, *others, task("z")])
    job.all_tasks_known = True
    run.until_idle()
    assert job.state is JobState.DONE
    assert [group.trials for group in job.groups] == [16, 16]
    assert all(state.trials >= 3 for state in job.tasks)
    assert job.progress(0.0).total == 2 and job.progress(0.0).planned == 32


def test_an_exhausted_alternative_leaves_its_trials_to_the_others() -> None:
    pool = SimulatedWorkerPool({"a": 60, "b": 2}, width=0.2)
    run = Run(options(batch=8, per_task=4, train=False), pool)
    job = TuningJob("j", trials=12)
    run.pipeline.add_job(job, [task("a"), replace(task("b"), group="a", alternative="b")])
    run.until_idle()
    assert job.state is JobState.DONE
    assert [state.trials for state in job.tasks] == [10, 2]
    (order,) = (o for _, _, _, o in pool.log if isinstance(o, CompareOrder))
    assert {c.task_id for c in order.finalists} == {"a"}, "no program of the other comes close"


def test_alternatives_that_were_compared_apart_are_compared_again() -> None:
    def compared(name: str, seconds: float, created: float) -> TaskState:
        outcome = Outcome(
            Status.OK, (seconds,), verified=True, compared=True, low=0.9 * seconds, high=seconds
        )
        record = Record(Candidate(name, 0, ((1,),)), outcome, created=created)
        return TaskState(task(name), [record])

    fast, slow, close = compared("a", 1.0, 1.0), compared("b", 3.0, 2.0), compared("c", 1.05, 2.0)
    group = TaskGroup("a", 1, [slow, fast, close])
    assert group.best is fast, "and not what was compared last"
    assert [r.candidate.task_id for r in group.finalists] == ["a", "c"]
    together = [compared("a", 1.0, 1.0), compared("c", 1.05, 1.0)]
    assert TaskGroup("a", 1, together).finalists == ()


def test_finalists_of_different_alternatives_are_in_one_comparison() -> None:
    pool = SimulatedWorkerPool({"a": 7, "b": 7}, width=0.2)  # both are equally fast
    run = Run(options(batch=8, per_task=4, train=False), pool)
    jobs = [TuningJob(name, trials=12) for name in ("j", "k")]
    for job in jobs:
        run.pipeline.add_job(job, [task("a"), replace(task("b"), group="a", alternative="b")])
    run.until_idle()
    assert all(job.state is JobState.DONE for job in jobs)
    orders = [o for _, _, _, o in pool.log if isinstance(o, CompareOrder)]
    assert len(orders) == 1, "the jobs share it"
    assert {c.task_id for c in orders[0].finalists} == {"a", "b"}
    first, second = (state.best for state in jobs[0].tasks)
    assert first and second and first.outcome.compared and first.created == second.created
    newest = {r.candidate.id: r for r in run.store.rows}
    assert all(newest[c.id].outcome.compared for c in orders[0].finalists)
