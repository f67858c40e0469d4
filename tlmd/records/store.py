"""RecordStore: SQLite in WAL mode, one writer, msgpack payloads; acknowledged = committed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tlmd import wire
from tlmd.ranking import fastest
from tlmd.records.database import Database
from tlmd.records.dataset import read_dataset, write_dataset
from tlmd.types import Baseline, Record, Task

# Equal candidates: the latest measurement, and of two at the same time the one written last.
_NEWEST = """
SELECT * FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY candidate_id ORDER BY created DESC, row DESC) AS nth
    FROM records WHERE task_id = ? AND fingerprint = ?
) WHERE nth = 1
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there is; ``failed`` are records that are not OK.

    Example: ``Counts(tasks=25, records=400, failed=7)``.
    """

    tasks: int
    records: int
    failed: int


@dataclass(frozen=True, slots=True)
class JobRow:
    """A stored job; the payload is msgpack that its owner understands.

    Example: ``JobRow("j1", "running", b"...")``.
    """

    id: str
    state: str
    payload: bytes


class RecordStore(Database):
    """The store of one state directory; safe to use from several threads.

    A method that writes returns after its transaction is on disk. What opening and using it can
    raise is said in `Database`.
    """

    # tasks and records

    def add_task(self, task: Task) -> None:
        """Keep a task; one with the same id is replaced (its weight may have changed)."""
        self.add_tasks([task])

    def add_tasks(self, tasks: Iterable[Task]) -> None:
        """Keep several tasks in one transaction."""
        rows = [(task.id, wire.pack(task)) for task in tasks]
        self._write_many("INSERT OR REPLACE INTO tasks VALUES (?, ?)", rows)

    def task(self, task_id: str) -> Task | None:
        """The task of this id, or None."""
        rows = self._read("SELECT payload FROM tasks WHERE id = ?", (task_id,))
        return self._unpack(Task, rows[0][0]) if rows else None

    def tasks(self) -> list[Task]:
        """All tasks, in the order they came."""
        rows = self._read("SELECT payload FROM tasks ORDER BY rowid")
        return [self._unpack(Task, payload) for (payload,) in rows]

    def add_record(self, record: Record) -> None:
        """Keep one record."""
        self.add_records([record])

    def add_records(self, records: Iterable[Record]) -> None:
        """Keep several records in one transaction.

        A record of the same candidate, machine and batch replaces an older one, so recording a
        batch twice is harmless; another batch's is kept beside it.
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
        """The newest record of each candidate of a task on one machine, failures included."""
        query = f"SELECT payload FROM ({_NEWEST}) ORDER BY created, row"
        return self._records(query, (task_id, fingerprint))

    def all_records(self) -> list[Record]:
        """Every measurement there is, in the order they were written."""
        return self._records("SELECT payload FROM records ORDER BY row", ())

    def best(self, task_id: str, fingerprint: str) -> Record | None:
        """The best verified record, by each candidate's newest measurement (`ranking.fastest`)."""
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
        """Numbers of tasks, measurements and failures."""
        rows = self._read(
            "SELECT (SELECT COUNT(*) FROM tasks), (SELECT COUNT(*) FROM records),"
            " (SELECT COUNT(*) FROM records WHERE NOT ok)"
        )
        return Counts(*rows[0])

    # what belongs to them

    def put_baseline(self, baseline: Baseline) -> None:
        """Keep the unscheduled program's time; a newer one replaces it."""
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
        """Keep the plan of a batch; payloads are the caller's `wire.pack`."""
        self._write_many("INSERT OR REPLACE INTO batches VALUES (?, ?)", [(number, payload)])

    def batch(self, number: int) -> bytes | None:
        """The plan of one batch, or None."""
        rows = self._read("SELECT payload FROM batches WHERE number = ?", (number,))
        return bytes(rows[0][0]) if rows else None

    def last_batch(self) -> tuple[int, bytes] | None:
        """Number and plan of the newest batch, or None."""
        rows = self._read("SELECT number, payload FROM batches ORDER BY number DESC LIMIT 1")
        return (int(rows[0][0]), bytes(rows[0][1])) if rows else None

    def put_checkpoint(self, version: int, payload: bytes) -> None:
        """Keep what is known of a checkpoint; payloads are the caller's `wire.pack`."""
        self._write_many("INSERT OR REPLACE INTO checkpoints VALUES (?, ?)", [(version, payload)])

    def checkpoints(self) -> list[tuple[int, bytes]]:
        """All checkpoints by version."""
        rows = self._read("SELECT version, payload FROM checkpoints ORDER BY version")
        return [(int(version), bytes(payload)) for version, payload in rows]

    def put_job(self, job_id: str, state: str, payload: bytes) -> None:
        """Keep a job or its new state; payloads are the caller's `wire.pack`."""
        self._write_many(
            "INSERT INTO jobs (id, state, payload) VALUES (?, ?, ?) ON CONFLICT (id)"
            " DO UPDATE SET state = excluded.state, payload = excluded.payload",
            [(job_id, state, payload)],
        )

    def job(self, job_id: str) -> JobRow | None:
        """The job of this id, or None."""
        rows = self._read("SELECT id, state, payload FROM jobs WHERE id = ?", (job_id,))
        return JobRow(*rows[0]) if rows else None

    def jobs(self, state: str | None = None) -> list[JobRow]:
        """All jobs, or those in one state, in the order they came."""
        rows = self._read(
            "SELECT id, state, payload FROM jobs WHERE ?1 IS NULL OR state = ?1 ORDER BY row",
            (state,),
        )
        return [JobRow(*row) for row in rows]

    # data sets

    def export_dataset(self, path: Path) -> Counts:
        """Write all tasks and records to one msgpack file, whole or not at all.

        Without features: they are the largest part of a record and can be computed again.
        """
        tasks = self.tasks()
        records = [replace(record, features=b"") for record in self.all_records()]
        write_dataset(path, tasks, records)
        failed = sum(not record.outcome.ok for record in records)
        return Counts(len(tasks), len(records), failed)

    def import_dataset(self, path: Path) -> Counts:
        """Add the tasks and records of a data set file; known ones are not added again.

        Raises `BadInput` for a file that is not one; then nothing was added.
        """
        data = read_dataset(path)
        known = {task.id for task in self.tasks()}
        with self._transaction():
            # A task we have keeps our weight and name.
            self.add_tasks(task for task in data.tasks if task.id not in known)
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
