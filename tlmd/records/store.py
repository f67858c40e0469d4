"""RecordStore: SQLite in WAL mode, one writer, msgpack payloads; acknowledged = committed."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tlmd import wire
from tlmd.errors import BadInput, Failed
from tlmd.types import Baseline, Record, Task

SCHEMA_VERSION = 1
DATASET_VERSION = 1
_DATASET_MAGIC = "tlmd-dataset"

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE tasks (id TEXT PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE records (
    row INTEGER PRIMARY KEY,
    candidate_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    batch INTEGER NOT NULL,
    created REAL NOT NULL,
    ok INTEGER NOT NULL,
    verified INTEGER NOT NULL,
    seconds REAL,
    module_hash TEXT NOT NULL,
    payload BLOB NOT NULL,
    UNIQUE (candidate_id, fingerprint, batch)
);
CREATE INDEX records_by_task ON records (task_id, fingerprint, candidate_id, created);
CREATE TABLE baselines (
    task_id TEXT NOT NULL, fingerprint TEXT NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (task_id, fingerprint)
);
CREATE TABLE batches (number INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE checkpoints (version INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE jobs (
    row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, payload BLOB NOT NULL
);
"""
# Equal candidates: the latest measurement, and of two at the same time the one written last.
_NEWEST = """
SELECT * FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY candidate_id ORDER BY created DESC, row DESC) AS nth
    FROM records WHERE task_id = ? AND fingerprint = ?
) WHERE nth = 1
"""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


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


@dataclass(frozen=True, slots=True)
class Dataset:
    """The contents of a data set file: what others share and train on."""

    magic: str
    version: int
    tasks: tuple[Task, ...]
    records: tuple[Record, ...]


class RecordStore:
    """The store of one state directory; safe to use from several threads.

    A method that writes returns after its transaction is on disk. Opening raises `BadInput` for a
    file that is damaged or of a newer tlmd, and `Failed` while another process has it open for
    writing; every method raises `Failed` when the disk is full or broken. ``read_only`` opens
    beside a writer.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self._path = Path(path)
        self._mutex = threading.RLock()
        self._lock_fd = -1
        if read_only and not self._path.exists():
            raise BadInput(f"{self._path} does not exist; nothing was measured there yet")
        if not read_only:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_fd = _lock(self._path)
        try:
            self._db = self._open(read_only)
        except BaseException:
            self._unlock()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and let others write; harmless when called again."""
        with self._mutex:
            self._db.close()
            self._unlock()

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
        """The fastest verified record, by each candidate's newest measurement, or None."""
        query = (
            f"SELECT payload FROM ({_NEWEST}) WHERE ok AND verified AND seconds IS NOT NULL"
            " ORDER BY seconds, row LIMIT 1"
        )
        found = self._records(query, (task_id, fingerprint))
        return found[0] if found else None

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
        """Write all tasks and records to one msgpack file, whole or not at all."""
        tasks, records = tuple(self.tasks()), tuple(self.all_records())
        data = wire.pack(Dataset(_DATASET_MAGIC, DATASET_VERSION, tasks, records))
        temporary = Path(f"{path}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise Failed(f"cannot write {path}: {error.strerror}; choose another place") from error
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

    # SQLite

    def _open(self, read_only: bool) -> sqlite3.Connection:
        with self._errors():
            uri = f"{self._path.absolute().as_uri()}{'?mode=ro' if read_only else ''}"
            db = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
            try:
                db.execute("PRAGMA busy_timeout = 10000")
                if not read_only:
                    db.execute("PRAGMA journal_mode = WAL")
                    db.execute("PRAGMA synchronous = FULL")
                self._check(db, read_only)
            except BaseException:
                db.close()
                raise
        return db

    def _check(self, db: sqlite3.Connection, read_only: bool) -> None:
        if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise BadInput(self._mend("is damaged"))
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
        if not tables and not read_only:
            db.executescript(
                f"BEGIN; {_SCHEMA} INSERT INTO meta VALUES ('schema', {SCHEMA_VERSION}); COMMIT;"
            )
            return
        if "meta" not in tables:
            raise BadInput(self._mend("is not a record store of tlmd"))
        row = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        version = int(row[0]) if row else 0
        if version > SCHEMA_VERSION:
            raise BadInput(
                f"{self._path} was written by a newer tlmd (schema {version}, this one reads up to "
                f"{SCHEMA_VERSION}); upgrade tlmd or use another --state-dir"
            )
        if version < 1:
            raise BadInput(self._mend("has no schema version"))

    def _mend(self, what: str) -> str:
        return f"{self._path} {what}; move it away (a new one is made) or restore a copy"

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._mutex, self._errors():
            return self._db.execute(query, values).fetchall()

    def _write_many(self, query: str, rows: list[tuple[Any, ...]]) -> None:
        with self._transaction():
            self._db.executemany(query, rows)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of the block or nothing; nested blocks belong to the outermost one."""
        with self._mutex, self._errors():
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite rolls back by itself on a full disk
                    self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in _DAMAGED:
                raise BadInput(self._mend(f"is damaged ({error})")) from error
            if code == sqlite3.SQLITE_FULL:
                raise Failed(f"no space left to write {self._path}; free some disk") from error
            if isinstance(error, sqlite3.OperationalError):
                raise Failed(f"cannot use {self._path}: {error}; check the disk") from error
            raise

    def _records(self, query: str, values: tuple[Any, ...]) -> list[Record]:
        return [self._unpack(Record, payload) for (payload,) in self._read(query, values)]

    def _unpack(self, cls: Any, payload: bytes) -> Any:
        try:
            return wire.unpack(cls, payload)
        except wire.WireError as error:
            raise BadInput(self._mend(f"is damaged ({error})")) from error

    def _unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def read_dataset(path: Path) -> Dataset:
    """Read a data set file; raises `BadInput` for anything else."""
    try:
        data = wire.unpack(Dataset, Path(path).read_bytes())
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except wire.WireError as error:
        raise BadInput(f"{path} is not a tlmd data set ({error}); export it again") from error
    if data.magic != _DATASET_MAGIC:
        raise BadInput(f"{path} is not a tlmd data set; export it with `tlmd records export`")
    if data.version > DATASET_VERSION:
        raise BadInput(f"{path} was written by a newer tlmd; upgrade tlmd to read it")
    return data


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


def _lock(path: Path) -> int:
    """Take the writer's lock; it ends with the process, whatever ends it."""
    try:
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Failed(f"cannot write to {path.parent}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise Failed(f"the state directory {path.parent} is in use by pid {owner}") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd
