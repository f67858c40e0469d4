"""A full disk: nothing is done that is not on disk; all goes on when there is room. The clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from tests.support.pipeline_run import Run
from tests.support.simulated import MemoryStore, options
from tlmd.data.errors import DiskFull
from tlmd.data.types import Baseline, Record
from tlmd.pipeline.tuning_jobs import TuningJob
from tlmd.processes.wall_clock import WallClock


@dataclass
class FullStore(MemoryStore):
    """Nothing can be written while it `is_full`."""

    is_full: bool = False

    def _need_room(self) -> None:
        if self.is_full:
            raise DiskFull("no space left to write records.sqlite; free some disk")

    def add_records(self, records: Iterable[Record]) -> None:
        self._need_room()
        super().add_records(records)

    def put_baseline(self, baseline: Baseline) -> None:
        self._need_room()
        super().put_baseline(baseline)

    def put_batch(self, number: int, payload: bytes) -> None:
        self._need_room()
        super().put_batch(number, payload)


@pytest.mark.parametrize("after", [0, 1, 9])
def test_a_full_disk_is_waited_for_and_nothing_is_lost_or_told_before(after: int) -> None:
    store = FullStore()
    run = Run(options(batch=4, per_task=4, train=False), store=store)
    job = run.add(TuningJob("j", trials=8), "a", "b")
    for _ in range(after):
        run.pipeline.step(1.0)
    store.is_full = True
    kept = len(store.rows)
    for _ in range(60):
        run.pipeline.step(1.0)
    assert len(store.rows) == kept and not job.state.is_finished
    (told,) = run.events("disk_full")
    assert told["error"] == store_line() and job.reason == f"it waits: {store_line()}"
    store.is_full = False
    run.until_idle()
    assert str(job.state) == "done" and job.reason == "" and len(run.events("disk_has_room")) == 1
    assert len(run.measured()) == len(set(run.measured())) == 16 and len(store.baselines) == 2


def store_line() -> str:
    return "no space left to write records.sqlite; free some disk"


def test_records_are_in_order_though_the_clock_is_set_back() -> None:
    times = iter([100.0, 50.0, 50.0, 200.0])
    clock = WallClock(90.0, lambda: next(times))
    found = [clock.now() for _ in range(4)]
    assert found == sorted(found) and len(set(found)) == 4
    assert found[0] == 100.0 and found[3] == 200.0
    assert WallClock(1e3, lambda: 5.0).now() > 1e3, "a store may have records of a later time"


def test_the_records_of_a_job_are_later_than_the_job() -> None:
    run = Run(options(batch=4, per_task=4, train=False))
    later = 4e9  # it was submitted before the clock was set back
    run.add(TuningJob("j", trials=4, created=later), "a")
    run.until_idle()
    assert run.store.rows and all(record.created > later for record in run.store.rows)
