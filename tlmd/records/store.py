"""The record store: SQLite in WAL mode, one writer, msgpack payloads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tlmd.data import wire
from tlmd.data.selection import fastest
from tlmd.data.types import Baseline, Record, Task, Writer
from tlmd.records.compaction import RecordCompaction
from tlmd.records.dataset import read_dataset, write_dataset
from tlmd.records.schema import ADD_RECORD, ADD_SIGNATURE, ADD_TASK_KEY, record_row
from tlmd.records.signature import signature

# The number by which records name a task on one kind of machine.
_KEY = "(SELECT key FROM task_keys WHERE task_id = ? AND fingerprint = ?)"
# For each candidate, the latest measurement; of two at the same time, the one written last.
_NEWEST = f"""
SELECT payload FROM (
    SELECT row, created, payload,
        ROW_NUMBER() OVER (PARTITION BY candidate ORDER BY created DESC, row DESC) AS nth
    FROM records WHERE task = {_KEY}
) WHERE nth = 1 ORDER BY created, row
"""
# The best of those that were measured alone, or compared; `selection.fastest` explains the order.
_BEST = f"""
SELECT payload FROM records AS r
WHERE task = {_KEY} AND compared = ? AND verified AND seconds IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM records AS n WHERE n.task = r.task AND n.candidate = r.candidate
    AND (n.created, n.row) > (r.created, r.row)
) ORDER BY %s LIMIT 1
"""
_BEST_ALONE = _BEST % "seconds, created, row"
_BEST_COMPARED = _BEST % "created DESC, seconds, row"
# The fastest of all tasks that compute the same, but for one.
_EARLIER = """
SELECT payload FROM signatures AS this
JOIN signatures AS other ON other.signature = this.signature
    AND other.fingerprint = this.fingerprint AND other.task_id != this.task_id
JOIN task_keys AS k ON k.task_id = other.task_id AND k.fingerprint = other.fingerprint
JOIN records AS r ON r.task = k.key
WHERE this.task_id = ? AND this.fingerprint = ? AND this.signature != ''
    AND verified AND seconds IS NOT NULL
ORDER BY seconds, created, row LIMIT ?
"""
_COUNT_CARRIED = "UPDATE meta SET value = value + ? WHERE key = 'carried'"
_ID_DIGITS = 32  # of a candidate
_PORTION = 2000  # records that are read at a time
_KEPT_BATCHES = 1000  # plans of older batches are removed


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of tasks, of records, and of records that are not OK (``failed``).

    Example: ``Counts(tasks=25, records=400, failed=7)``.
    """

    tasks: int
    records: int
    failed: int
    carried: int = 0
    """Programs of older revisions of tasks that were verified and measured for the newer ones."""


class RecordStore(RecordCompaction):
    """The store of one state directory. Thread-safe.

    A method that writes returns when its transaction is on disk. `Database` documents the errors of
    opening and using it.
    """

    # Tasks and records.

    def add_task(self, task: Task) -> None:
        """Store a task. It replaces one with the same key (its weight may have changed)."""
        self.add_tasks([task])

    def add_tasks(self, tasks: Iterable[Task]) -> None:
        """Store several tasks in one transaction."""
        given = list(tasks)
        query = "INSERT OR REPLACE INTO tasks (id, fingerprint, payload) VALUES (?, ?, ?)"
        with self._transaction():
            self._write_many(query, [(*task.key, wire.pack(task)) for task in given])
            self._write_many(ADD_SIGNATURE, [(*task.key, signature(task)) for task in given])

    def tasks(self) -> list[Task]:
        """All tasks, in the order in which they were added."""
        rows = self._read("SELECT payload FROM tasks ORDER BY rowid")
        return [self._unpack(Task, payload) for (payload,) in rows]

    def add_record(self, record: Record) -> None:
        """Store one record."""
        self.add_records([record])

    def add_records(self, records: Iterable[Record]) -> None:
        """Store several records in one transaction.

        A record replaces an older one of the same candidate, machine and batch, so a batch may be
        stored twice. Records of different batches are kept side by side.
        """
        given = list(records)
        rows = [record_row(record, wire.pack(record)) for record in given]
        with self._transaction():
            carried = sum(
                record.writer is Writer.CARRIED
                and record.outcome.verified
                and not self.has_record(
                    record.candidate.id, record.candidate.task_id, record.fingerprint
                )
                for record in given
            )
            if carried:
                self._write_many(_COUNT_CARRIED, [(carried,)])
            self._write_many(ADD_TASK_KEY, sorted({row[-2:] for row in rows}))
            self._write_many(ADD_RECORD, rows)

    def records(self, task_id: str, fingerprint: str) -> list[Record]:
        """The newest record of each candidate of a task on one machine, including failures."""
        return self._records(_NEWEST, (task_id, fingerprint))

    def earlier_records(self, task_id: str, fingerprint: str, count: int) -> list[Record]:
        """The fastest verified records of older revisions of a task, at most `count`.

        These are tasks with the same signature and another id. An upgrade of tlmd that lowers a
        model to other programs makes new revisions.
        """
        return self._records(_EARLIER, (task_id, fingerprint, count))

    def all_records(self) -> list[Record]:
        """All records, in the order in which they were written."""
        return self._records("SELECT payload FROM records ORDER BY row", ())

    def check_records(self) -> None:
        """Read the whole file and every record. Raises `BadInput` where something is damaged."""
        self.check_whole()
        last = 0
        while portion := self.packed_records(last, _PORTION):
            for row in portion:
                self._unpack(Record, row[-1])
            last = portion[-1][0]

    def last_row(self) -> int:
        """The number of the newest record; 0 while there is none."""
        return int(self._read("SELECT COALESCE(MAX(row), 0) FROM records")[0][0])

    def last_time(self) -> float:
        """When the newest record was made, in seconds since the epoch; 0 while there is none."""
        rows = self._read("SELECT created FROM records ORDER BY row DESC LIMIT 1")
        return float(rows[0][0]) if rows else 0.0

    def packed_records(self, after: int, count: int) -> list[tuple[int, str, str, int, bytes]]:
        """The next `count` records after a row: row, task id, fingerprint, batch, packed record."""
        query = (
            "SELECT row, task_id, fingerprint, batch, payload FROM records"
            " JOIN task_keys ON key = task WHERE row > ? ORDER BY row LIMIT ?"
        )
        return self._read(query, (after, count), int, str, str, int, bytes)

    def has_record(self, candidate_id: str, task_id: str, fingerprint: str) -> bool:
        """Whether a candidate was measured on one machine."""
        query = f"SELECT 1 FROM records WHERE task = {_KEY} AND candidate = ? LIMIT 1"
        return bool(self._read(query, (task_id, fingerprint, bytes.fromhex(candidate_id))))

    def find_records(self, prefix: str) -> list[Record]:
        """Records whose candidate id begins with `prefix`, the newest first."""
        try:
            bounds = [bytes.fromhex(prefix.ljust(_ID_DIGITS, digit)) for digit in "0f"]
        except ValueError:
            return []  # ids are hexadecimal
        query = (
            "SELECT payload FROM task_keys CROSS JOIN records ON task = key"
            " WHERE candidate BETWEEN ? AND ? ORDER BY created DESC, row DESC"
        )
        return self._records(query, tuple(bounds))

    def newest_records(
        self, count: int, failed: bool = False, tasks: Collection[str] | None = None
    ) -> list[Record]:
        """The newest records, the newest first; with `failed` only failures.

        `tasks` are the ids of the tasks to look at; None: all.
        """
        among = ""
        if tasks is not None:
            marks = ", ".join("?" * len(tasks))
            among = f" AND task IN (SELECT key FROM task_keys WHERE task_id IN ({marks}))"
        query = (
            f"SELECT payload FROM records WHERE (NOT ? OR NOT ok){among} ORDER BY row DESC LIMIT ?"
        )
        return self._records(query, (failed, *(tasks or ()), count))

    def best(self, task_id: str, fingerprint: str) -> Record | None:
        """The best verified record among the newest of each candidate (`selection.fastest`)."""
        alone = self._records(_BEST_ALONE, (task_id, fingerprint, False))
        return fastest([*alone, *self._records(_BEST_COMPARED, (task_id, fingerprint, True))])

    def counts(self) -> Counts:
        """The numbers of tasks, records and failures; the same time however many there are."""
        rows = self._read(
            "SELECT (SELECT COUNT(*) FROM tasks), (SELECT value FROM meta WHERE key = 'records'),"
            " (SELECT value FROM meta WHERE key = 'failed'),"
            " (SELECT value FROM meta WHERE key = 'carried')",
            (),
            *(int, int, int, int),
        )
        return Counts(*rows[0])

    # Baselines, batches and checkpoints.

    def put_baseline(self, baseline: Baseline) -> None:
        """Store the time of a task's unscheduled program. It replaces an older one."""
        row = (baseline.task_id, baseline.fingerprint, wire.pack(baseline))
        self._write_many("INSERT OR REPLACE INTO baselines VALUES (?, ?, ?)", [row])

    def baseline(self, task_id: str, fingerprint: str) -> Baseline | None:
        """The unscheduled program's time on one machine, or None."""
        rows = self._read(
            "SELECT payload FROM baselines WHERE task_id = ? AND fingerprint = ?",
            (task_id, fingerprint),
        )
        return self._unpack(Baseline, rows[0][0]) if rows else None

    def put_batch(self, number: int, payload: bytes) -> None:
        """Store the plan of a batch, which the caller encodes with `wire.pack`."""
        with self._transaction():
            self._write_many("INSERT OR REPLACE INTO batches VALUES (?, ?)", [(number, payload)])
            self._write_many("DELETE FROM batches WHERE number <= ?", [(number - _KEPT_BATCHES,)])

    def batch(self, number: int) -> bytes | None:
        """The plan of one batch, or None."""
        rows = self._read("SELECT payload FROM batches WHERE number = ?", (number,), bytes)
        return rows[0][0] if rows else None

    def set_flag(self, name: str, value: bool) -> None:
        """Store a switch of the daemon, such as ``paused``."""
        query = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
        self._write_many(query, [(f"flag:{name}", int(value))])

    def flag(self, name: str) -> bool:
        """A switch; False where it was never set."""
        rows = self._read("SELECT value FROM meta WHERE key = ?", (f"flag:{name}",))
        return bool(rows and rows[0][0])

    def last_batch(self) -> tuple[int, bytes] | None:
        """Number and plan of the newest batch, or None."""
        query = "SELECT number, payload FROM batches ORDER BY number DESC LIMIT 1"
        rows = self._read(query, (), int, bytes)
        return rows[0] if rows else None

    def put_checkpoint(self, version: int, payload: bytes) -> None:
        """Store facts about a checkpoint, which the caller encodes with `wire.pack`."""
        self._write_many("INSERT OR REPLACE INTO checkpoints VALUES (?, ?)", [(version, payload)])

    def checkpoints(self) -> list[tuple[int, bytes]]:
        """Versions and payloads of all checkpoints, in the order of the versions."""
        query = "SELECT version, payload FROM checkpoints ORDER BY version"
        return self._read(query, (), int, bytes)

    # Data sets.

    def export_dataset(self, path: Path) -> Counts:
        """Write all tasks and records to one data set file, completely or not at all.

        Features are left out: they are the largest part of a record and can be computed again.
        """
        tasks = self.tasks()
        records = [replace(record, features=b"") for record in self.all_records()]
        write_dataset(path, tasks, records)
        failed = sum(not record.outcome.ok for record in records)
        return Counts(len(tasks), len(records), failed)

    def import_dataset(self, path: Path) -> Counts:
        """Add the tasks and records of a data set file, except for known ones.

        Raises `BadInput` for any other file; then nothing is added.
        """
        data = read_dataset(path)
        stored = {task.key for task in self.tasks()}
        with self._transaction():
            # A task that is in the store already keeps its weight and name.
            self.add_tasks(task for task in data.tasks if task.key not in stored)
            self.add_records(data.records)
        failed = sum(not record.outcome.ok for record in data.records)
        return Counts(len(data.tasks), len(data.records), failed)

    def _records(self, query: str, values: tuple[Any, ...]) -> list[Record]:
        return [self._unpack(Record, payload) for (payload,) in self._read(query, values)]
