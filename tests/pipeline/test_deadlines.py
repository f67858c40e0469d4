"""Overdue orders are given up, and nothing waits for a trainer that cannot be started."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.support.pipeline_run import Run
from tests.support.simulated import Pace, SimulatedWorkerPool, options
from tlmd.data.config import GenerateConfig, RegistryConfig, TrainConfig
from tlmd.data.types import JobState
from tlmd.pipeline.orders import (
    Event,
    Order,
    PublishOrder,
    StartFailed,
    TrainOrder,
    WorkerKind,
    WriteOrder,
)
from tlmd.pipeline.state import PipelineOptions
from tlmd.pipeline.tuning_jobs import TuningJob


def _options() -> PipelineOptions:
    return PipelineOptions(
        options(batch=8, per_task=4).pipeline,
        TrainConfig(timeout=100.0),
        GenerateConfig(timeout=30.0),
        RegistryConfig(timeout=20.0),
    )


class Hanging(SimulatedWorkerPool):
    """Some orders are never answered."""

    hangs: type[Order] = WriteOrder
    most: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.replaced: Counter[str] = Counter()

    def _seconds(self, order: Order) -> float:
        bad = not isinstance(order, WriteOrder) or order.task.id == "bad"
        if isinstance(order, self.hangs) and bad and sum(self.replaced.values()) < self.most:
            return 1e9
        return super()._seconds(order)

    def interrupt_training(self, at_once: bool) -> None:
        if self.hangs is not TrainOrder:
            super().interrupt_training(at_once)

    def replace(self, worker: str) -> None:
        self.replaced[worker] += 1
        super().replace(worker)


def test_a_generator_that_does_not_answer_is_replaced_and_its_task_given_up() -> None:
    pool = Hanging({"a": 60, "bad": 60})
    run = Run(_options(), pool)
    job = run.add(TuningJob("j", trials=16), "bad", "a")
    run.until_idle()
    assert job.state is JobState.DONE
    assert {t.task.id: t.trials for t in job.tasks} == {"bad": 0, "a": 16}
    assert pool.replaced == {"generator-0": 3}
    assert [e["seconds"] for e in run.events("overdue")] == [30, 30, 30]


def test_a_trainer_or_a_registry_that_does_not_answer_is_replaced() -> None:
    for hangs, worker in ((TrainOrder, "trainer-0"), (PublishOrder, "registry-0")):
        pool = Hanging({"a": 300}, pace=Pace(measure=2.0))
        pool.hangs, pool.most = hangs, 2
        run = Run(_options(), pool)
        job = run.add(TuningJob("j", trials=200), "a")
        run.until_idle()
        assert job.state is JobState.DONE and pool.replaced == {worker: 2}
        assert pool.version > 0, "learning goes on"


def test_time_in_which_the_daemon_stood_still_does_not_count() -> None:
    pool = SimulatedWorkerPool({"a": 60})
    run = Run(_options(), pool)
    run.add(TuningJob("j", trials=4), "a")
    while not run.pipeline.state.has_order(WriteOrder):
        run.pipeline.step(0.01)
    pool.time += 3600.0
    run.pipeline.step(0.0)
    run.until_idle()
    assert not run.events("overdue")


class NoTrainer(SimulatedWorkerPool):
    """Its trainer can never be started."""

    def _happen(self, what: Any) -> list[Event]:
        if what[:2] == ("join", "trainer-0"):
            self._push(self.time + 10.0, what)
            return [StartFailed("trainer-0", WorkerKind.TRAINER, "no CUDA", 10.0)]
        return super()._happen(what)


def test_measuring_goes_on_without_a_trainer() -> None:
    run = Run(_options(), NoTrainer({"a": 200}))
    job = run.add(TuningJob("j", trials=100), "a")
    run.until_idle()
    assert job.state is JobState.DONE and len(run.measured()) == 100
    assert run.pipeline.learning.trainer_error == "no CUDA"
    assert run.events("start_failed")[0]["again_s"] == 10
