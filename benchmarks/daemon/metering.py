"""How much of its time a thread spends in its worker pool and in its store."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tlmd.data.types import Record
from tlmd.pipeline.orders import Event, Order, WorkerPool
from tlmd.records.store import RecordStore


@dataclass
class ThreadSeconds:
    """Seconds of one thread by activity; ``waiting`` is the wall clock of waiting without work."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, activity: str, seconds: float) -> None:
        """Add to the seconds of one activity."""
        self.seconds[activity] = self.seconds.get(activity, 0.0) + seconds


class MeteredWorkerPool:
    """A worker pool whose calls are timed. Waiting for events is not work, unpacking them is."""

    def __init__(self, pool: WorkerPool, spent: ThreadSeconds) -> None:
        self._pool = pool
        self._spent = spent

    def now(self) -> float:
        return self._pool.now()

    def send(self, worker: str, order: Order) -> None:
        begin = time.perf_counter()
        self._pool.send(worker, order)
        self._spent.add("sending", time.perf_counter() - begin)

    def wait(self, seconds: float) -> list[Event]:
        begin, worked = time.perf_counter(), time.thread_time()
        events = self._pool.wait(seconds)
        worked = time.thread_time() - worked
        self._spent.add("answers", worked)
        self._spent.add("waiting", time.perf_counter() - begin - worked)
        return events

    def replace(self, worker: str) -> None:
        self._pool.replace(worker)

    def interrupt_training(self, at_once: bool) -> None:
        self._pool.interrupt_training(at_once)


class MeteredStore:
    """A record store whose writes are timed."""

    def __init__(self, store: RecordStore, spent: ThreadSeconds) -> None:
        self._store = store
        self._spent = spent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add_records(self, records: Iterable[Record]) -> None:
        """Add records, timed."""
        begin = time.perf_counter()
        self._store.add_records(records)
        self._spent.add("store", time.perf_counter() - begin)

    def put_batch(self, number: int, payload: bytes) -> None:
        """Write the plan of a batch, timed."""
        begin = time.perf_counter()
        self._store.put_batch(number, payload)
        self._spent.add("store", time.perf_counter() - begin)
