"""The record store: SQLite in WAL mode, one writer, msgpack payloads."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tlmd import wire
from tlmd.records.database import Database
from tlmd.records.dataset import read_dataset, write_dataset
from tlmd.selection import fastest
from tlmd.types import Baseline, Record, Task

# For each candidate, the latest measurement; of two at the same time, the one written last.
_NEWEST = """
SELECT * FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY candidate_id ORDER BY created DESC, row DESC) AS nth
    FROM records WHERE task_id = ? AND fingerprint = ?
) WHERE nth = 1
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of tasks, of records, and of records that are not OK (``failed``).

    Example: ``Counts(tasks=25, records=400, failed=7)``.
    """

    tasks: int
    records: int
    failed: int


@dataclass(frozen=True, slots=True)
class JobRow:
    """A stored job. The payload is msgpack; the caller of `put_job` encodes it.

    Example: ``JobRow("j1", "running", b"...")``.
    """

    id: str
    state: str
    payload: bytes


class RecordStore(Database):
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
        rows = [(*task.key, wire.pack(task)) for task in tasks]
        query = "INSERT OR REPLACE INTO tasks (id, fingerprint, payload) VALUES (?, ?, ?)"
        self._write_many(query, rows)

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
        self._write_many(
            "INSERT INTO records (candidate_id, task_id, fingerprint, batch, created, ok, verified,"
            " seconds, module_hash, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (candidate_id, fingerprint, batch) DO UPDATE SET"
            " created = excluded.created, ok = excluded.ok, verified = excluded.verified,"
            " seconds = excluded.seconds, module_hash = excluded.module_hash,"
            " payload = excluded.payload WHERE excluded.created >= records.created",
            [_row(record) for record in records],
        )

    def records(self, task_id: str, fingerprint: str) -> list[Record]:
        """The newest record of each candidate of a task on one machine, including failures."""
        query = f"SELECT payload FROM ({_NEWEST}) ORDER BY created, row"
        return self._records(query, (task_id, fingerprint))

    def all_records(self) -> list[Record]:
        """All records, in the order in which they were written."""
        return self._records("SELECT payload FROM records ORDER BY row", ())

    def find_records(self, prefix: str) -> list[Record]:
        """Records whose candidate id begins with `prefix`, the newest first."""
        query = (
            "SELECT payload FROM records WHERE candidate_id >= ? AND candidate_id < ?"
            " ORDER BY created DESC, row DESC"
        )
        return self._records(query, (prefix, prefix + "\x7f"))

    def newest_records(
        self, count: int, failed: bool = False, tasks: Collection[str] | None = None
    ) -> list[Record]:
        """The newest records, the newest first; with `failed` only failures.

        `tasks` are the ids of the tasks to look at; None: all.
        """
        among = ""
        if tasks is not None:
            among = f" AND task_id IN ({', '.join('?' * len(tasks))})"
        query = (
            f"SELECT payload FROM records WHERE (NOT ? OR NOT ok){among} ORDER BY row DESC LIMIT ?"
        )
        return self._records(query, (failed, *(tasks or ()), count))

    def best(self, task_id: str, fingerprint: str) -> Record | None:
        """The best verified record among the newest of each candidate (`selection.fastest`)."""
        return fastest(self.records(task_id, fingerprint))

    def seen(self, task_id: str, fingerprint: str) -> tuple[set[str], set[str]]:
        """Ids and final-module hashes of all candidates of a task measured on one machine."""
        rows = self._read(
            "SELECT DISTINCT candidate_id, module_hash FROM records"
            " WHERE task_id = ? AND fingerprint = ?",
            (task_id, fingerprint),
        )
        return {row[0] for row in rows}, {row[1] for row in rows if row[1]}

    def counts(self) -> Counts:
        """The numbers of tasks, records and failures."""
        rows = self._read(
            "SELECT (SELECT COUNT(*) FROM tasks), (SELECT COUNT(*) FROM records),"
            " (SELECT COUNT(*) FROM records WHERE NOT ok)"
        )
        return Counts(*rows[0])

    # Baselines, batches, checkpoints and jobs.

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
        self._write_many("INSERT OR REPLACE INTO batches VALUES (?, ?)", [(number, payload)])

    def batch(self, number: int) -> bytes | None:
        """The plan of one batch, or None."""
        rows = self._read("SELECT payload FROM batches WHERE number = ?", (number,))
        return bytes(rows[0][0]) if rows else None

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
        rows = self._read("SELECT number, payload FROM batches ORDER BY number DESC LIMIT 1")
        return (int(rows[0][0]), bytes(rows[0][1])) if rows else None

    def put_checkpoint(self, version: int, payload: bytes) -> None:
        """Store facts about a checkpoint, which the caller encodes with `wire.pack`."""
        self._write_many("INSERT OR REPLACE INTO checkpoints VALUES (?, ?)", [(version, payload)])

    def checkpoints(self) -> list[tuple[int, bytes]]:
        """Versions and payloads of all checkpoints, in the order of the versions."""
        rows = self._read("SELECT version, payload FROM checkpoints ORDER BY version")
        return [(int(version), bytes(payload)) for version, payload in rows]

    def put_job(self, job_id: str, state: str, payload: bytes) -> None:
        """Store a job, or its new state. The caller encodes the payload with `wire.pack`."""
        self._write_many(
            "INSERT INTO jobs (id, state, payload) VALUES (?, ?, ?) ON CONFLICT (id)"
            " DO UPDATE SET state = excluded.state, payload = excluded.payload",
            [(job_id, state, payload)],
        )

    def job(self, job_id: str) -> JobRow | None:
        """The job with this id, or None."""
        rows = self._read("SELECT id, state, payload FROM jobs WHERE id = ?", (job_id,))
        return JobRow(*rows[0]) if rows else None

    def jobs(self, state: str | None = None) -> list[JobRow]:
        """All jobs, or the jobs in one state, in the order in which they were added."""
        rows = self._read(
            "SELECT id, state, payload FROM jobs WHERE ?1 IS NULL OR state = ?1 ORDER BY row",
            (state,),
        )
        return [JobRow(*row) for row in rows]

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
        known = {task.key for task in self.tasks()}
        with self._transaction():
            # A task that is in the store already keeps its weight and name.
            self.add_tasks(task for task in data.tasks if task.key not in known)
            self.add_records(data.records)
        failed = sum(not record.outcome.ok for record in data.records)
        return Counts(len(data.tasks), len(data.records), failed)

    def _records(self, query: str, values: tuple[Any, ...]) -> list[Record]:
        return [self._unpack(Record, payload) for (payload,) in self._read(query, values)]


def _row(record: Record) -> tuple[Any, ...]:
    outcome, candidate = record.outcome, record.candidate
    seconds = outcome.seconds if math.isfinite(outcome.seconds) else None
    return (
        candidate.id,
        candidate.task_id,
        record.fingerprint,
        record.batch,
        record.created,
        outcome.ok,
        outcome.verified,
        seconds,
        record.module_hash,
        wire.pack(record),
    )
