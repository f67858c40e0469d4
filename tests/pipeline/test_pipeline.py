"""The pipeline with simulated workers: versions, lag, losses."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pipeline_run import SIZES, Run
from tests.support.simulated import Pace, SimulatedWorkerPool, options
from tlmd.data.types import Candidate, JobState, Status
from tlmd.pipeline.orders import BaselineOrder, CompareOrder, MeasureOrder
from tlmd.pipeline.tuning_jobs import TuningJob


def test_the_table_of_the_paper_holds_literally_under_strict() -> None:
    run = Run(options(batch=8, per_task=4, strict=True))
    run.add(TuningJob("j", trials=16), "a", "b", "c")
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
    pool = SimulatedWorkerPool(SIZES, slots, generators, pace)
    run = Run(options(batch=6, per_task=3, chunk=2, strict=strict, min_train_s=1.0), pool)
    run.add(TuningJob("j", trials=20))
    run.until_idle()
    assert set(Counter(run.measured()).values()) == {1}
    assert len(run.measured()) == 60
    for event in run.events("written"):
        if event["version"]:
            upto = pool.trained_on[event["version"]][0]
            # Where measuring outruns writing, even the batch before may have been learnt from.
            assert upto <= event["batch"] - (2 if strict else 1)
            assert not strict or upto == event["batch"] - 2
    for record in run.store.rows:
        if record.outcome.ok:
            assert 0 <= record.lag <= pool.version
            assert not strict or record.lag <= 1


def test_measuring_never_waits_for_training() -> None:
    pool = SimulatedWorkerPool(SIZES, pace=Pace(train=1000.0))
    run = Run(options(batch=8, per_task=4, min_train_s=2000.0), pool)
    run.add(TuningJob("j", trials=40))
    run.until_idle()
    orders = sorted(
        (b, e)
        for b, e, _, o in pool.log
        if isinstance(o, MeasureOrder | BaselineOrder | CompareOrder)
    )
    idle = sum(max(0.0, later[0] - earlier[1]) for earlier, later in itertools.pairwise(orders))
    assert idle < 0.01 * pool.time
    assert all(r.lag == 0 for r in run.store.rows if r.outcome.ok)


def test_a_training_that_takes_long_is_cut_short_when_a_batch_has_to_be_written() -> None:
    pool = SimulatedWorkerPool(SIZES, pace=Pace(train=1000.0))
    run = Run(options(batch=16, per_task=8, min_train_s=1.0), pool)
    run.add(TuningJob("j", trials=40))
    run.until_idle()
    assert len(run.events("published")) >= 4
    assert max(r.lag for r in run.store.rows) >= 1


def test_a_refused_checkpoint_changes_nothing() -> None:
    pool = SimulatedWorkerPool(SIZES, refuse=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14))
    run = Run(options(batch=8, per_task=4, strict=True), pool)
    run.add(TuningJob("j", trials=16))
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
    pool = SimulatedWorkerPool(SIZES, slots=2)
    for when, worker in deaths:
        pool.kill_at(when, worker)
    run = Run(options(batch=6, per_task=4, chunk=2, strict=strict), pool)
    run.add(TuningJob("j", trials=30))
    run.until_idle()
    assert Counter(run.measured()) == dict.fromkeys(run.measured(), 1)
    rows = [r for r in run.store.rows if not r.outcome.compared]
    crashed = [r for r in rows if r.outcome.status is Status.CRASH]
    counted = [r for r in rows if r.outcome.ok] + crashed
    assert Counter(r.candidate.task_id for r in counted) == {"a": 30, "b": 30, "c": 30}
    # A candidate that was with three slots that died is given up, though it killed none of them.
    slots = [worker for _, worker in deaths if worker.startswith("measurer")]
    assert len(crashed) <= len(slots) // 3


def test_a_candidate_that_kills_its_slot_is_given_up_the_third_time() -> None:
    deadly = Candidate("a", 0, ((2,),))

    class Deadly(SimulatedWorkerPool):
        def send(self, worker: str, order: Any) -> None:
            super().send(worker, order)
            if isinstance(order, MeasureOrder) and any(
                i.candidate_id == deadly.id for i in order.inputs
            ):
                self.kill_at(self.time, worker)

    run = Run(options(batch=8, per_task=8), Deadly({"a": 40}))
    run.add(TuningJob("j", trials=8), "a")
    run.until_idle()
    rows = [r for r in run.store.rows if r.outcome.status is not Status.INVALID]
    assert len(rows) == 8
    bad = [r for r in rows if r.outcome.status is Status.CRASH]
    assert [r.candidate.decisions for r in bad] == [((2,),)]


def test_slots_that_cannot_work_fail_the_job_with_the_reason() -> None:
    run = Run(options(), SimulatedWorkerPool(SIZES, broken=True))
    job = run.add(TuningJob("j", trials=8))
    run.until_idle()
    assert (job.state, job.reason) == (JobState.FAILED, "no gcc")
