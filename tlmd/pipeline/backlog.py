"""The records that the trainer does not have yet, in bounded memory."""

from __future__ import annotations

from collections import deque

from tlmd.data.types import Record
from tlmd.pipeline.orders import Store

_PORTION = 2000  # records that are read in one step of the pipeline, in about 10 ms


class TrainingBacklog:
    """Records committed since the trainer was told last; for a new trainer all of the store.

    At most the newest `window` records. The store's are read in portions, one for each call of
    `read`, and stay packed, so that the pipeline's thread never waits for long.
    """

    def __init__(self, store: Store, window: int) -> None:
        self._store = store
        self._window = window
        self._new: deque[Record] = deque(maxlen=window)
        self._stored: deque[tuple[int, str, str, int, bytes]] = deque(maxlen=window)
        self._row = 0
        """The last row of the store that was read."""
        self._reading = False

    def add(self, records: list[Record]) -> None:
        """These records were committed."""
        if not self._reading:  # else they are read from the store
            self._new.extend(records)

    def restart(self) -> None:
        """The trainer has nothing: begin to read the store."""
        self._new.clear()
        self._stored.clear()
        self._row = max(0, self._store.last_row() - self._window)
        self._reading = True

    def read(self) -> bool:
        """Read one portion of the store; True when nothing of it is left to read."""
        if self._reading:
            rows = self._store.packed_records(self._row, _PORTION)
            self._stored.extend(rows)
            self._row = rows[-1][0] if rows else self._row
            self._reading = len(rows) == _PORTION
        return not self._reading

    def take(self, upto: int) -> tuple[list[Record], list[bytes], set[tuple[str, str]]]:
        """Remove what batches up to `upto` gave: records, packed records, the keys of the tasks."""
        stored = [row for row in self._stored if row[3] <= upto]
        self._stored = deque((r for r in self._stored if r[3] > upto), self._window)
        new = [record for record in self._new if record.batch <= upto]
        self._new = deque((r for r in self._new if r.batch > upto), self._window)
        keys = {(row[1], row[2]) for row in stored}
        keys |= {(r.candidate.task_id, r.fingerprint) for r in new}
        return new, [row[4] for row in stored], keys
