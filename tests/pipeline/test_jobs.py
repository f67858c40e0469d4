"""The pipeline with simulated workers: whose task is next, when a job ends, comparisons."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.pipeline_run import SIZES, Run
from tests.support.simulated import MemoryStore, Pace, SimulatedWorkerPool, options, task
from tlmd.data.types import JobState
from tlmd.pipeline.orders import CompareOrder, TrainOrder, WriteOrder
from tlmd.pipeline.tuning_jobs import TuningJob


def test_users_come_first_and_the_corpus_when_nothing_else_waits() -> None:
    pool = SimulatedWorkerPool({"a": 60, "b": 60, "z": 500})
    run = Run(options(batch=4, per_task=4), pool)
    corpus = run.add(TuningJob("corpus", trials=0, corpus=True), "z")
    while len(run.measured()) < 20:
        run.pipeline.step(1.0)
    begun = pool.time
    user = run.add(TuningJob("user", trials=12), "a", "b")
    while not user.state.is_finished:
        run.pipeline.step(1.0)
    planned = [o.task.id for b, _, _, o in pool.log if isinstance(o, WriteOrder) and b > begun]
    assert set(planned) >= {"a", "b"} and planned.count("z") <= 1  # the batch that was planned
    count = len(run.measured())
    while len(run.measured()) < count + 20:
        run.pipeline.step(1.0)
    assert not corpus.state.is_finished
    run.pipeline.cancel("corpus")
    run.until_idle()
    assert corpus.state is JobState.CANCELLED


def test_jobs_of_users_share_and_every_task_gets_a_first_round() -> None:
    pool = SimulatedWorkerPool(dict.fromkeys("abcdef", 100))
    run = Run(options(batch=8, per_task=4), pool)
    run.add(TuningJob("one", trials=20), "a", "b", "c")
    run.add(TuningJob("two", trials=4), "d", "e", "f")
    run.until_idle()
    order = [o.task.id for _, _, _, o in pool.log if isinstance(o, WriteOrder)]
    assert set(order[:6]) == set("abcdef")
    assert set(order[:2]) & set("abc") and set(order[:2]) & set("def")


def test_cancel_keeps_what_is_in_flight_and_drops_the_rest() -> None:
    run = Run(options(batch=32, per_task=8, chunk=2))
    job = run.add(TuningJob("j", trials=40))
    while len(run.measured()) < 6:
        run.pipeline.step(1.0)
    run.pipeline.cancel("j")
    run.until_idle()
    assert job.state is JobState.CANCELLED and len(run.measured()) <= 6 + 4
    again = run.add(TuningJob("k", trials=10))
    run.until_idle()
    assert again.state is JobState.DONE
    assert Counter(run.measured()) == dict.fromkeys(run.measured(), 1)


def test_pause_and_drain() -> None:
    run = Run(options(batch=8, per_task=4, chunk=2))
    run.add(TuningJob("j", trials=40))
    while len(run.measured()) < 6:
        run.pipeline.step(1.0)
    run.pipeline.paused = True
    for _ in range(10):
        run.pipeline.step(1.0)
    count = len(run.measured())
    for _ in range(10):
        run.pipeline.step(1.0)
    assert len(run.measured()) == count
    run.pipeline.paused = False
    for _ in range(20):
        run.pipeline.step(1.0)
    assert len(run.measured()) > count
    run.pipeline.drain()
    for _ in range(30):
        run.pipeline.step(1.0)
    assert run.pipeline.is_drained


def test_a_second_run_goes_on_where_the_first_one_ended() -> None:
    store = MemoryStore()
    first = Run(options(batch=8, per_task=4), store=store)
    first.add(TuningJob("j", trials=10))
    while len(first.measured()) < 12:
        first.pipeline.step(1.0)
    before = list(first.measured())
    second = Run(options(batch=8, per_task=4), store=store)
    job = second.add(TuningJob("j", trials=10))
    second.until_idle()
    assert job.state is JobState.DONE and second.measured()[: len(before)] == before
    assert len(second.measured()) == 30 == len(set(second.measured()))
    batches = [r.batch for r in store.rows if r.outcome.ok]
    assert batches[len(before)] > batches[len(before) - 1]


def test_a_small_space_ends_early_and_a_time_budget_still_gives_every_task_a_program() -> None:
    run = Run(options(batch=8, per_task=4), SimulatedWorkerPool({"a": 3, "b": 60, "c": 60}))
    job = run.add(TuningJob("j", trials=40, budget_s=0.1))
    run.until_idle()
    assert job.state is JobState.DONE and all(s.best for s in job.tasks)
    assert len(run.measured()) < 40
    more = run.add(TuningJob("k", trials=12))
    run.until_idle()
    assert [s.trials for s in more.tasks] == [3, 12, 12]


@pytest.mark.slow
def test_a_campaign_ends_when_measuring_on_does_not_pay() -> None:
    pool = SimulatedWorkerPool({"a": 5000, "b": 5000})
    run = Run(options(batch=8, per_task=4, window=100, gain=0.1), pool)
    job = run.add(TuningJob("c", trials=0, corpus=True, until_converged=True), "a", "b")
    run.until_idle()
    assert job.convergence is not None
    status = job.convergence.status(job)
    assert (job.state, job.reason) == (JobState.DONE, "converged")
    # The best of n is 0.5 / n here: 10 % over 100 candidates are reached after about 1000.
    assert status.gain is not None and status.gain < 0.12  # what was in flight came after
    assert 600 < status.measured < 1500


def test_the_window_covers_a_whole_rotation() -> None:
    pool = SimulatedWorkerPool({f"t{i}": 400 for i in range(20)})
    run = Run(options(batch=4, per_task=4, window=8, gain=0.9), pool)
    job = run.add(TuningJob("c", trials=0, corpus=True, until_converged=True), *pool.sizes)
    run.until_idle()
    assert all(s.trials for s in job.tasks)


def test_a_job_whose_tasks_come_later_is_not_over_before() -> None:
    run = Run(options())
    job = run.add(TuningJob("j", trials=4, all_tasks_known=False), "a")
    for _ in range(30):
        run.pipeline.step(1.0)
    assert not job.state.is_finished
    job.all_tasks_known = True
    run.pipeline.add_job(job, [task("b")])
    run.until_idle()
    assert job.state is JobState.DONE and [s.trials for s in job.tasks] == [4, 4]


def test_the_trainer_is_taught_everything_again_after_its_death() -> None:
    pool = SimulatedWorkerPool(SIZES)
    pool.kill_at(12.0, "trainer-0")
    run = Run(options(batch=8, per_task=4, strict=True), pool)
    run.add(TuningJob("j", trials=20))
    run.until_idle()
    orders = [o for _, _, _, o in pool.log if isinstance(o, TrainOrder)]
    assert [o.fresh for o in orders].count(True) == 2
    assert pool.trained_on[orders[-1].version][1] >= 40


@pytest.mark.parametrize("strict", [True, False])
def test_queues_are_bounded(strict: bool) -> None:
    run = Run(options(batch=8, per_task=4, strict=strict))
    run.add(TuningJob("j", trials=60))
    longest = 0
    while not run.pipeline.is_idle:
        run.pipeline.step(1.0)
        waiting = sum(b.waiting for b in run.pipeline.state.batches)
        longest = max(longest, waiting)
        assert len(run.pipeline.state.batches) <= 3
    assert longest <= 2 * 8


def test_finalists_are_compared_before_a_job_is_done_and_luck_does_not_win() -> None:
    pool = SimulatedWorkerPool({"a": 10}, width=0.04, luck=1e-2)  # 0 looks far too fast
    run = Run(options(batch=8, per_task=4, train=False), pool)
    job = run.add(TuningJob("j", trials=8), "a")
    run.until_idle()
    comparisons = [order for _, _, _, order in pool.log if isinstance(order, CompareOrder)]
    assert not comparisons, "its interval overlaps no other"
    # Number 8 takes 0.0556 s, number 0 seems to take 0.05.
    pool = SimulatedWorkerPool({"a": 10}, width=0.2, luck=0.1)
    run = Run(options(batch=8, per_task=4, train=False), pool)
    job = run.add(TuningJob("j", trials=8), "a")
    run.until_idle()
    comparisons = [order for _, _, _, order in pool.log if isinstance(order, CompareOrder)]
    assert len(comparisons) == 1
    assert comparisons[0].finalists[0].decisions == ((0,),)
    (state,) = job.tasks
    assert state.best is not None and state.best.candidate.decisions == ((8,),)
    assert state.best.outcome.compared and state.trials == 8
    assert len(state.records) == len({r.candidate.id for r in state.records})
    newest = {r.candidate.id: r for r in run.store.rows}
    assert newest[comparisons[0].finalists[0].id].outcome.compared, "labels are refreshed"


def test_a_comparison_that_is_lost_with_its_slot_does_not_keep_a_job_from_ending() -> None:
    pool = SimulatedWorkerPool({"a": 10}, width=0.2, luck=0.1, pace=Pace(compare=50.0))
    run = Run(options(batch=8, per_task=4, train=False), pool)
    job = run.add(TuningJob("j", trials=8), "a")
    pool.kill_at(30.0, "measurer-0")
    pool.kill_at(70.0, "measurer-0")
    run.until_idle()
    assert job.state is JobState.DONE


def test_a_job_says_what_its_newest_quarter_gained() -> None:
    run = Run(options(batch=4, per_task=2, chunk=2))
    job = run.add(TuningJob("j", trials=16))
    assert job.progress(0.0).recent_gain is None
    run.until_idle()
    gain = job.progress(0.0).recent_gain
    assert gain is not None
    earlier = now = 0.0
    for one in job.groups:
        batches = one.best.best_after_batch
        before = batches[-1 - max(1, len(batches) // 4)]
        earlier += one.weight * before
        now += one.weight * min(one.best_seconds, before)
    assert gain == pytest.approx(1 - now / earlier) and 0 <= gain < 1


def test_a_job_with_one_batch_of_each_task_knows_no_gain() -> None:
    run = Run(options(batch=8, per_task=8, chunk=2))
    job = run.add(TuningJob("j", trials=8))
    run.until_idle()
    assert all(len(one.best_after_batch) == 1 for one in job.tasks)
    assert job.progress(0.0).recent_gain is None


def test_past_the_time_budget_a_job_waits_for_what_is_in_flight() -> None:
    run = Run(options(batch=32, per_task=8, chunk=2))
    job = run.add(TuningJob("j", trials=400, budget_s=0.5))
    while not job.state.is_finished:
        run.pipeline.step(1.0)
    count = len(run.measured())
    run.until_idle()
    assert job.past_deadline and 0 < len(run.measured()) == count < 400


def test_a_time_budget_stands_still_while_paused_and_goes_on_after_a_restart() -> None:
    run = Run(options(batch=8, per_task=4, chunk=2, train=False))
    job = run.add(TuningJob("j", trials=400, budget_s=3.0))
    while not job.measured_now:
        run.pipeline.step(0.1)
    run.pipeline.step(0.1)
    run.pipeline.paused = True
    run.pipeline.step(0.1)
    spent = job.spent_s
    for _ in range(50):
        run.pipeline.step(1.0)
    assert job.spent_s == spent < 1.0 and not job.past_deadline
    run.pipeline.paused = False
    run.until_idle()
    assert job.past_deadline and 3.0 <= job.spent_s < 6.0
    again = run.add(TuningJob("k", trials=800, budget_s=3.0, spent_s=3.0))
    run.until_idle()
    assert again.state is JobState.DONE and again.past_deadline and again.measured_now == 0
