"""Writes what the pipeline has found out to the store; on a full disk it waits in memory."""

from __future__ import annotations

from collections.abc import Callable

from tlmd.data.errors import DiskFull
from tlmd.data.types import Baseline, Record
from tlmd.pipeline.orders import Store

_AGAIN_S = 1.0  # between two tries to write to a full disk


class StoreWriter:
    """Collects records and baselines until `flush` has written them.

    Entries that a full disk refuses stay here, and are written when there is room again. Until a
    record is on disk, the pipeline neither ends a job with it nor trains on it.
    """

    def __init__(self, store: Store, now: Callable[[], float], emit: Callable[..., None]) -> None:
        self.records: list[Record] = []
        self.baselines: list[Baseline] = []
        self.full = ""
        """Why nothing can be written, in one line; empty: it can."""
        self._store = store
        self._now = now
        self._emit = emit
        self._again_at = 0.0

    @property
    def is_flushed(self) -> bool:
        """Everything is on disk."""
        return not self.records and not self.baselines

    def flush(self) -> list[Record]:
        """Write what was collected; returns the records when they are on disk."""
        if self.is_flushed or not self._try(self._write):
            return []
        new, self.records = self.records, []
        self.baselines = []
        return new

    def put_batch(self, number: int, payload: bytes) -> bool:
        """Store the plan of a batch; False where the disk is full."""
        return self._try(lambda: self._store.put_batch(number, payload))

    def _write(self) -> None:
        for baseline in self.baselines:
            self._store.put_baseline(baseline)
        if self.records:
            self._store.add_records(self.records)

    def _try(self, write: Callable[[], None]) -> bool:
        if self.full and self._now() < self._again_at:
            return False
        try:
            write()
        except DiskFull as error:
            if not self.full:
                self._emit("disk_full", error=str(error))
            self.full, self._again_at = str(error), self._now() + _AGAIN_S
            return False
        if self.full:
            self.full = ""
            self._emit("disk_has_room")
        return True
