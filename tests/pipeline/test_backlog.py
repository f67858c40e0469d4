"""What a new trainer is told: read from the store in portions, the newest records only."""

from __future__ import annotations

import pytest

from tests.support.pipeline_run import Run
from tests.support.simulated import TARGET, MemoryStore, SimulatedWorkerPool, options
from tlmd.data import wire
from tlmd.data.types import Candidate, Outcome, Record, Status
from tlmd.pipeline import backlog
from tlmd.pipeline.backlog import TrainingBacklog
from tlmd.pipeline.orders import TrainOrder
from tlmd.pipeline.tuning_jobs import TuningJob


def records(count: int, batch: int = 0, first: int = 0) -> list[Record]:
    outcome = Outcome(Status.OK, (1.0,), verified=True)
    candidates = (Candidate("old", 0, ((i,),)) for i in range(first, first + count))
    return [Record(c, outcome, batch=batch, fingerprint=TARGET.fingerprint) for c in candidates]


def test_the_store_is_read_in_portions_and_new_records_are_neither_lost_nor_told_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "_PORTION", 10)
    store = MemoryStore(records(25))
    waiting = TrainingBacklog(store, window=100)
    waiting.restart()
    assert not waiting.read()
    new = records(3, batch=1, first=25)
    store.add_records(new)
    waiting.add(new)
    assert not waiting.read() and waiting.read()
    late = records(2, batch=2, first=28)
    store.add_records(late)
    waiting.add(late)
    given, packed, keys = waiting.take(1)
    assert (given, keys) == ([], {("old", "here")})
    assert [wire.unpack(Record, data) for data in packed] == store.rows[:28]
    assert waiting.take(2) == (late, [], {("old", "here")})
    assert waiting.take(9) == ([], [], set())


def test_only_the_newest_are_kept() -> None:
    waiting = TrainingBacklog(MemoryStore(records(50)), window=20)
    waiting.restart()
    assert waiting.read()
    _, packed, _ = waiting.take(0)
    assert [wire.unpack(Record, d).candidate.decisions[0][0] for d in packed] == [*range(30, 50)]
    for first in range(50, 150):  # there is no trainer, or it does not answer
        waiting.add(records(1, 1, first))
    given, _, _ = waiting.take(1)
    assert [r.candidate.decisions[0][0] for r in given] == [*range(130, 150)]


def test_a_trainer_that_is_replaced_gets_the_newest_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "_PORTION", 16)
    pool = SimulatedWorkerPool({"a": 90})
    chosen = options(batch=8, per_task=8)
    chosen = type(chosen)(chosen.pipeline, chosen.train.model_copy(update={"window": 40}))
    run = Run(chosen, pool, MemoryStore(records(100, batch=-1)))
    run.add(TuningJob("j", trials=70), "a")
    pool.kill_at(8.0, "trainer-0")
    run.until_idle()
    orders = [o for _, _, _, o in pool.log if isinstance(o, TrainOrder)]
    assert sum(order.fresh for order in orders) == 2
    for order in orders:
        assert len(order.packed) + len(order.records) <= 40
    assert max(len(order.packed) for order in orders) > 30
