"""The pipeline against a simulated crew under a simulated clock."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulated import MemoryStore, Pace, SimulatedCrew, task
from tlmd.pipeline.board import Rules
from tlmd.pipeline.jobs import Job, JobState
from tlmd.pipeline.loop import Pipeline
from tlmd.pipeline.orders import BaselineOrder, MeasureOrder, RaceOrder, TrainOrder, WriteOrder
from tlmd.types import Status

SIZES = {"a": 60, "b": 60, "c": 60}


class Run:
    """A pipeline, its crew and the trace of what happened."""

    def __init__(
        self,
        rules: Rules,
        crew: SimulatedCrew | None = None,
        store: MemoryStore | None = None,
    ) -> None:
        self.crew = crew or SimulatedCrew(SIZES)
        self.store = store or MemoryStore()
        self.trace: list[dict[str, Any]] = []
        self.pipeline = Pipeline(self.crew, self.store, rules, self._tell)

    def _tell(self, kind: str, **facts: Any) -> None:
        self.trace.append({"kind": kind, "time": self.crew.now(), **facts})

    def add(self, job: Job, *tasks: str, weight: int = 1) -> Job:
        found = [task(name, weight) for name in tasks or SIZES]
        self.store.known += found
        self.pipeline.add_job(job, found)
        return job

    def until_idle(self, steps: int = 20_000) -> None:
        for _ in range(steps):
            self.pipeline.step(1.0)
            if self.pipeline.is_idle:
                return
        raise AssertionError(f"not idle: {self.trace[-5:]}")

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.trace if e["kind"] == kind]

    def measured(self) -> list[str]:
        """A race times again what was measured."""
        rows = [r for r in self.store.rows if r.outcome.status is not Status.INVALID]
        return [r.candidate.id for r in rows if not r.outcome.raced]


def test_the_table_of_the_paper_holds_literally_under_strict() -> None:
    run = Run(Rules(batch=8, turn=4, strict=True))
    run.add(Job("j", trials=16), "a", "b", "c")
    run.until_idle()
    written = {e["batch"]: e["version"] for e in run.events("written")}
    # Batches 0 and 1 are by TLM-base; what was learnt from batch i first writes batch i+2.
    assert [written[n] for n in range(5)] == [0, 0, 1, 2, 3]
    upto = {e["version"]: e["upto"] for e in run.events("training")}
    assert [upto[v] for v in (1, 2, 3)] == [0, 1, 2]
    measuring = {e["batch"]: e["time"] for e in run.events("measuring")}
    measured = {e["batch"]: e["time"] for e in run.events("measured")}
    training = {e["upto"]: e["time"] for e in run.events("training")}
    for batch in range(3):
        # Training on batches <= i begins with measuring batch i+1, and steps do not overlap.
        assert measured[batch] <= training[batch] == measuring[batch + 1]


paces = st.builds(
    Pace,
    write=st.floats(0.001, 0.3),
    measure=st.floats(0.01, 1.0),
    train=st.floats(0.1, 60.0),
    publish=st.floats(0.01, 5.0),
    swap=st.floats(0.01, 5.0),
)


@given(paces, st.integers(1, 3), st.integers(1, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_invariant_of_the_pipeline(
    pace: Pace, slots: int, generators: int, strict: bool
) -> None:
    crew = SimulatedCrew(SIZES, slots, generators, pace)
    run = Run(Rules(batch=6, turn=3, chunk=2, strict=strict, lesson_s=1.0), crew)
    run.add(Job("j", trials=20))
    run.until_idle()
    assert set(Counter(run.measured()).values()) == {1}
    assert len(run.measured()) == 60
    for event in run.events("written"):
        if event["version"]:
            upto = crew.trained_on[event["version"]][0]
            # Where measuring outruns writing, even the batch before may have been learnt from.
            assert upto <= event["batch"] - (2 if strict else 1)
            assert not strict or upto == event["batch"] - 2
    for record in run.store.rows:
        if record.outcome.ok:
            assert 0 <= record.lag <= crew.version
            assert not strict or record.lag <= 1


def test_measuring_never_waits_for_training() -> None:
    crew = SimulatedCrew(SIZES, pace=Pace(train=1000.0))
    run = Run(Rules(batch=8, turn=4, lesson_s=2000.0), crew)
    run.add(Job("j", trials=40))
    run.until_idle()
    orders = sorted(
        (b, e) for b, e, _, o in crew.log if isinstance(o, MeasureOrder | BaselineOrder | RaceOrder)
    )
    idle = sum(max(0.0, later[0] - earlier[1]) for earlier, later in itertools.pairwise(orders))
    assert idle < 0.01 * crew.time
    assert all(r.lag == 0 for r in run.store.rows if r.outcome.ok)


def test_a_training_that_takes_long_is_cut_short_when_a_batch_has_to_be_written() -> None:
    crew = SimulatedCrew(SIZES, pace=Pace(train=1000.0))
    run = Run(Rules(batch=16, turn=8, lesson_s=1.0), crew)
    run.add(Job("j", trials=40))
    run.until_idle()
    assert len(run.events("published")) >= 4
    assert max(r.lag for r in run.store.rows) >= 1


def test_a_refused_checkpoint_changes_nothing() -> None:
    crew = SimulatedCrew(SIZES, refuse=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14))
    run = Run(Rules(batch=8, turn=4, strict=True), crew)
    run.add(Job("j", trials=16))
    run.until_idle()
    assert run.events("refused") and not run.events("published") and not run.events("swapped")
    assert {e["version"] for e in run.events("written")} == {0}


kills = st.lists(
    st.tuples(
        st.floats(0.0, 60.0),
        st.sampled_from(["measurer-0", "measurer-1", "generator-0", "trainer-0", "registry-0"]),
    ),
    max_size=4,
)


@given(kills, st.booleans())
@settings(max_examples=80, deadline=None)
def test_no_candidate_is_lost_or_recorded_twice_whoever_dies(
    deaths: list[tuple[float, str]], strict: bool
) -> None:
    crew = SimulatedCrew(SIZES, slots=2)
    for when, worker in deaths:
        crew.kill_at(when, worker)
    run = Run(Rules(batch=6, turn=4, chunk=2, strict=strict), crew)
    run.add(Job("j", trials=30))
    run.until_idle()
    assert Counter(run.measured()) == dict.fromkeys(run.measured(), 1)
    good = (r for r in run.store.rows if r.outcome.ok and not r.outcome.raced)
    assert Counter(r.candidate.task_id for r in good) == {
        "a": 30,
        "b": 30,
        "c": 30,
    }


def test_a_candidate_that_kills_its_slot_is_given_up_the_third_time() -> None:
    class Deadly(SimulatedCrew):
        def send(self, worker: str, order: Any) -> None:
            super().send(worker, order)
            if isinstance(order, MeasureOrder) and any(
                p.candidate.decisions == ((2,),) for p in order.proposals
            ):
                self.kill_at(self.time, worker)

    run = Run(Rules(batch=8, turn=8), Deadly({"a": 40}))
    run.add(Job("j", trials=8), "a")
    run.until_idle()
    rows = [r for r in run.store.rows if r.outcome.status is not Status.INVALID]
    assert len(rows) == 8
    bad = [r for r in rows if r.outcome.status is Status.CRASH]
    assert [r.candidate.decisions for r in bad] == [((2,),)]


def test_slots_that_cannot_work_fail_the_job_with_the_reason() -> None:
    run = Run(Rules(), SimulatedCrew(SIZES, broken=True))
    job = run.add(Job("j", trials=8))
    run.until_idle()
    assert (job.state, job.reason) == (JobState.FAILED, "no gcc")


def test_users_come_first_and_the_corpus_when_nothing_else_waits() -> None:
    crew = SimulatedCrew({"a": 60, "b": 60, "z": 500})
    run = Run(Rules(batch=4, turn=4), crew)
    corpus = run.add(Job("corpus", trials=0, corpus=True), "z")
    while len(run.measured()) < 20:
        run.pipeline.step(1.0)
    begun = crew.time
    user = run.add(Job("user", trials=12), "a", "b")
    while not user.state.over:
        run.pipeline.step(1.0)
    planned = [o.task.id for b, _, _, o in crew.log if isinstance(o, WriteOrder) and b > begun]
    assert set(planned) >= {"a", "b"} and planned.count("z") <= 1  # the batch that was planned
    count = len(run.measured())
    while len(run.measured()) < count + 20:
        run.pipeline.step(1.0)
    assert corpus.state is JobState.RUNNING
    run.pipeline.cancel("corpus")
    run.until_idle()
    assert corpus.state is JobState.CANCELLED


def test_jobs_of_users_share_and_every_task_gets_a_first_round() -> None:
    crew = SimulatedCrew(dict.fromkeys("abcdef", 100))
    run = Run(Rules(batch=8, turn=4), crew)
    run.add(Job("one", trials=20), "a", "b", "c")
    run.add(Job("two", trials=4), "d", "e", "f")
    run.until_idle()
    order = [o.task.id for _, _, _, o in crew.log if isinstance(o, WriteOrder)]
    assert set(order[:6]) == set("abcdef")
    assert set(order[:2]) & set("abc") and set(order[:2]) & set("def")


def test_cancel_keeps_what_is_in_flight_and_drops_the_rest() -> None:
    run = Run(Rules(batch=32, turn=8, chunk=2))
    job = run.add(Job("j", trials=40))
    while len(run.measured()) < 6:
        run.pipeline.step(1.0)
    run.pipeline.cancel("j")
    run.until_idle()
    assert job.state is JobState.CANCELLED and len(run.measured()) <= 6 + 4
    again = run.add(Job("k", trials=10))
    run.until_idle()
    assert again.state is JobState.DONE
    assert Counter(run.measured()) == dict.fromkeys(run.measured(), 1)


def test_pause_and_drain() -> None:
    run = Run(Rules(batch=8, turn=4, chunk=2))
    run.add(Job("j", trials=40))
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
    first = Run(Rules(batch=8, turn=4), store=store)
    first.add(Job("j", trials=10))
    while len(first.measured()) < 12:
        first.pipeline.step(1.0)
    before = list(first.measured())
    second = Run(Rules(batch=8, turn=4), store=store)
    job = second.add(Job("j", trials=10))
    second.until_idle()
    assert job.state is JobState.DONE and second.measured()[: len(before)] == before
    assert len(second.measured()) == 30 == len(set(second.measured()))
    batches = [r.batch for r in store.rows if r.outcome.ok]
    assert batches[len(before)] > batches[len(before) - 1]


def test_a_small_space_ends_early_and_a_time_budget_still_gives_every_task_a_program() -> None:
    run = Run(Rules(batch=8, turn=4), SimulatedCrew({"a": 3, "b": 60, "c": 60}))
    job = run.add(Job("j", trials=40, budget_s=0.1))
    run.until_idle()
    assert job.state is JobState.DONE and all(s.best for s in job.tasks)
    assert len(run.measured()) < 40
    more = run.add(Job("k", trials=12))
    run.until_idle()
    assert [s.trials for s in more.tasks] == [3, 12, 12]


def test_a_campaign_ends_when_measuring_on_does_not_pay() -> None:
    crew = SimulatedCrew({"a": 5000, "b": 5000})
    run = Run(Rules(batch=8, turn=4, window=200, gain=0.05), crew)
    job = run.add(Job("c", trials=0, corpus=True, until_converged=True), "a", "b")
    run.until_idle()
    verdict = run.pipeline.convergence.verdict(job)
    assert (job.state, job.reason) == (JobState.DONE, "converged")
    # The best of n is 0.5 / n here: 5 % over 200 candidates are reached after about 4000.
    assert verdict.gain is not None and verdict.gain < 0.06  # what was in flight came after
    assert 2500 < verdict.measured < 6000


def test_the_window_covers_a_whole_rotation() -> None:
    crew = SimulatedCrew({f"t{i}": 400 for i in range(20)})
    run = Run(Rules(batch=4, turn=4, window=8, gain=0.9), crew)
    job = run.add(Job("c", trials=0, corpus=True, until_converged=True), *crew.sizes)
    run.until_idle()
    assert all(s.trials for s in job.tasks)


def test_a_job_whose_tasks_come_later_is_not_over_before() -> None:
    run = Run(Rules())
    job = run.add(Job("j", trials=4, whole=False), "a")
    for _ in range(30):
        run.pipeline.step(1.0)
    assert job.state is JobState.RUNNING
    job.whole = True
    run.pipeline.add_job(job, [task("b")])
    run.until_idle()
    assert job.state is JobState.DONE and [s.trials for s in job.tasks] == [4, 4]


def test_the_trainer_is_taught_everything_again_after_its_death() -> None:
    crew = SimulatedCrew(SIZES)
    crew.kill_at(12.0, "trainer-0")
    run = Run(Rules(batch=8, turn=4, strict=True), crew)
    run.add(Job("j", trials=20))
    run.until_idle()
    orders = [o for _, _, _, o in crew.log if isinstance(o, TrainOrder)]
    assert [o.fresh for o in orders].count(True) == 2
    assert crew.trained_on[orders[-1].version][1] >= 40


@pytest.mark.parametrize("strict", [True, False])
def test_queues_are_bounded(strict: bool) -> None:
    run = Run(Rules(batch=8, turn=4, strict=strict))
    run.add(Job("j", trials=60))
    longest = 0
    while not run.pipeline.is_idle:
        run.pipeline.step(1.0)
        waiting = sum(b.waiting for b in run.pipeline.board.batches)
        longest = max(longest, waiting)
        assert len(run.pipeline.board.batches) <= 3
    assert longest <= 2 * 8


def test_finalists_are_raced_before_a_job_is_done_and_luck_does_not_win() -> None:
    crew = SimulatedCrew({"a": 10}, width=0.04, luck=1e-2)  # number 0 looks ten times too fast
    run = Run(Rules(batch=8, turn=4, train=False), crew)
    job = run.add(Job("j", trials=8), "a")
    run.until_idle()
    races = [order for _, _, _, order in crew.log if isinstance(order, RaceOrder)]
    assert not races, "it is alone with its interval: nobody may be faster"
    crew = SimulatedCrew({"a": 10}, width=0.2, luck=0.1)  # 8 takes 0.0556 s, 0 seems to take 0.05
    run = Run(Rules(batch=8, turn=4, train=False), crew)
    job = run.add(Job("j", trials=8), "a")
    run.until_idle()
    races = [order for _, _, _, order in crew.log if isinstance(order, RaceOrder)]
    assert len(races) == 1
    assert races[0].records[0].candidate.decisions == ((0,),)
    (state,) = job.tasks
    assert state.best is not None and state.best.candidate.decisions == ((8,),)
    assert state.best.outcome.raced and state.trials == 8
    assert len(state.records) == len({r.candidate.id for r in state.records})
    newest = {r.candidate.id: r for r in run.store.rows}
    assert newest[races[0].records[0].candidate.id].outcome.raced, "labels are refreshed"


def test_a_race_that_is_lost_with_its_slot_does_not_keep_a_job_from_ending() -> None:
    crew = SimulatedCrew({"a": 10}, width=0.2, luck=0.1, pace=Pace(race=50.0))
    run = Run(Rules(batch=8, turn=4, train=False), crew)
    job = run.add(Job("j", trials=8), "a")
    crew.kill_at(30.0, "measurer-0")
    crew.kill_at(70.0, "measurer-0")
    run.until_idle()
    assert job.state is JobState.DONE
