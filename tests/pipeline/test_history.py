"""An order to write carries what is new of a task's history, and the generator knows all of it."""

from __future__ import annotations

import pytest

from tests.support.pipeline_run import Run
from tests.support.simulated import SimulatedWorkerPool, options
from tlmd.data.types import JobState
from tlmd.generate.history import WrittenHistory
from tlmd.pipeline.orders import Order, WriteOrder
from tlmd.pipeline.tuning_jobs import TuningJob


class Listening(SimulatedWorkerPool):
    """Keeps the orders to write."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.writes: list[tuple[str, WriteOrder]] = []

    def send(self, worker: str, order: Order) -> None:
        super().send(worker, order)
        if isinstance(order, WriteOrder):
            self.writes.append((worker, order))


def test_an_order_carries_only_what_is_new_to_its_generator() -> None:
    pool = Listening({"a": 900, "b": 900}, generators=2)
    run = Run(options(batch=8, per_task=4, train=False), pool)
    run.add(TuningJob("j", trials=300), "a", "b")
    run.until_idle()
    assert len(pool.writes) >= 150
    longest = max(len(order.avoid) for _, order in pool.writes)
    assert longest <= 40, "some orders of the other generator, not all 375 of the task"
    assert max(order.known for _, order in pool.writes) > 250
    assert len(run.measured()) == len(set(run.measured())) == 600


def test_a_new_generator_is_told_everything_again() -> None:
    pool = Listening({"a": 900})
    pool.kill_at(30.0, "generator-0")
    run = Run(options(batch=8, per_task=4, train=False), pool)
    run.add(TuningJob("j", trials=200), "a")
    run.until_idle()
    again = [order for _, order in pool.writes[2:] if order.known == 0]
    assert len(again) == 1 and len(again[0].avoid) > 50
    assert len(run.measured()) == len(set(run.measured())) == 200


def test_what_was_dropped_may_be_written_again() -> None:
    pool = Listening({"a": 60})
    run = Run(options(batch=32, per_task=32, chunk=2, train=False), pool)
    run.add(TuningJob("j", trials=32), "a")
    while len(run.measured()) < 6:
        run.pipeline.step(1.0)
    run.pipeline.cancel("j")
    again = run.add(TuningJob("k", trials=48), "a")
    run.until_idle()
    assert again.state is JobState.DONE
    assert len(run.measured()) == len(set(run.measured())) == 48, "all of the space"


def test_a_task_that_was_forgotten_begins_anew() -> None:
    pool = Listening({"a": 900, "b": 900})
    run = Run(options(batch=8, per_task=4, train=False), pool)
    for job, name in (("i", "a"), ("j", "b")):
        run.add(TuningJob(job, trials=40), name)
        run.until_idle()
        run.pipeline.forget_finished()
    begun, known = len(pool.writes), {r.candidate.id for r in run.store.records("a", "here")}
    run.add(TuningJob("k", trials=80), "a")
    run.until_idle()
    first = pool.writes[begun][1]
    assert first.known == 0 and {candidate_id for candidate_id, _ in first.avoid} == known
    assert len(run.measured()) == len(set(run.measured()))


def test_a_generator_notices_that_it_has_missed_something() -> None:
    history, task = WrittenHistory(), ("t", "here")
    assert list(history.add(task, 0, [("x", "1")])) == [("x", "1")]
    assert len(history.add(task, 1, [("y", "2")])) == 2
    with pytest.raises(ValueError, match="2 candidates of the task are known here, not 5"):
        history.add(task, 5, [])
    assert list(history.add(task, 0, [("z", "3")])) == [("z", "3")]
