"""One bad task, one bad slot or a trainer that keeps dying does not stop the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.support.pipeline_run import Run
from tests.support.simulated import TARGET, Pace, SimulatedWorkerPool, options, task
from tlmd.data.types import JobState, Status
from tlmd.pipeline.orders import MeasureOrder, Order, OrderFailed, TrainOrder, Worker, WriteOrder
from tlmd.pipeline.tuning_jobs import TuningJob


@dataclass
class Deadly(SimulatedWorkerPool):
    """An order that `is_deadly` kills the worker that gets it."""

    is_deadly: Callable[[Order], bool] = lambda order: False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sent: Counter[str] = Counter()

    def send(self, worker: str, order: Order) -> None:
        super().send(worker, order)
        if self.is_deadly(order):
            self.sent[worker] += 1
            self.kill_at(self.time + 0.01, worker)


def writes_bad(order: Order) -> bool:
    return isinstance(order, WriteOrder) and order.task.id == "bad"


def trains(order: Order) -> bool:
    return isinstance(order, TrainOrder)


def test_a_task_that_kills_generators_is_given_up() -> None:
    pool = Deadly({"a": 60, "bad": 60}, pace=Pace(restart=1.0), is_deadly=writes_bad)
    run = Run(options(batch=8, per_task=4), pool)
    job = run.add(TuningJob("j", trials=16), "bad", "a")
    other = run.add(TuningJob("k", trials=8), "bad")
    run.until_idle()
    assert job.state is other.state is JobState.DONE
    assert pool.sent["generator-0"] <= 6, "three for each job at most"
    trials = {state.task.id: state.trials for state in job.tasks}
    assert trials == {"bad": 0, "a": 16}
    (told, *_) = run.events("write_failed")
    assert "3 generators" in told["error"]


def test_training_that_kills_the_trainer_does_not_stop_the_measuring() -> None:
    pool = Deadly({"a": 60}, pace=Pace(restart=0.5), is_deadly=trains)
    run = Run(options(batch=4, per_task=4), pool)
    job = run.add(TuningJob("j", trials=24), "a")
    run.until_idle()
    assert job.state is JobState.DONE and len(run.measured()) == 24
    assert run.pipeline.learning.version == 0
    batches = len(run.events("planned"))
    assert 3 <= pool.sent["trainer-0"] <= 3 * batches


@dataclass
class OneBadSlot(SimulatedWorkerPool):
    """The first slot raises an error for whatever it measures, at once."""

    def _happen(self, what: Any) -> list[Any]:
        events = super()._happen(what)
        if what[0] == "done" and what[1] == "measurer-0" and isinstance(what[3], MeasureOrder):
            return [OrderFailed("measurer-0", what[3], "no gcc")]
        return events


def test_one_bad_slot_of_four_is_set_aside() -> None:
    run = Run(options(batch=8, per_task=4), OneBadSlot({"a": 90, "b": 90}, slots=4))
    job = run.add(TuningJob("j", trials=40), "a", "b")
    run.until_idle()
    assert job.state is JobState.DONE
    rows = [r for r in run.store.rows if r.outcome.status is not Status.INVALID]
    assert len({r.candidate.id for r in rows}) == 80
    assert all(r.outcome.status is Status.OK for r in rows), "no candidate pays for the slot"
    assert len(run.events("slot_failed")) >= 3


@dataclass
class TwoKinds(SimulatedWorkerPool):
    """The second slot has other hardware; it is away from `leaves` until `returns`."""

    leaves: float = 20.0
    returns: float = 900.0

    def __post_init__(self) -> None:
        self.slots = 2
        super().__post_init__()
        self.kill_at(self.leaves, "measurer-1")

    def _start(self, name: str, delay: float) -> None:
        away = name == "measurer-1" and self.time > 0
        super()._start(name, self.returns - self.time if away else delay)

    def _worker(self, name: str) -> Worker:
        return replace(
            super()._worker(name), local=False, target=OTHER if name == "measurer-1" else TARGET
        )


OTHER = replace(TARGET, fingerprint="there")


def test_a_kind_of_hardware_that_vanishes_stops_nobody_else() -> None:
    pool = TwoKinds({"a": 400, "b": 400}, pace=Pace(measure=1.0, train=2.0))
    run = Run(options(batch=8, per_task=4), pool)
    other = TuningJob("other", trials=120)
    run.pipeline.add_job(other, [task("b", target=OTHER)])
    job = run.add(TuningJob("job", trials=240), "a")
    version_then = 0
    while not job.state.is_finished:
        run.pipeline.step(1.0)
        if pool.time < pool.leaves + 62:
            version_then = pool.version
    assert job.state is JobState.DONE and pool.time < pool.returns
    assert pool.version >= version_then + 5, "training goes on"
    assert not other.state.is_finished and "no slot" in other.reason
    assert not run.pipeline.state.batches, "no batch waits for what has no slot"
    run.until_idle()
    assert other.state is JobState.DONE and other.reason == ""
    assert len(run.measured()) == 360 == len(set(run.measured()))
