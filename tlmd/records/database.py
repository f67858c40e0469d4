"""The SQLite file below the record store: opening, checking, locking, transactions, errors."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tlmd import wire
from tlmd.errors import BadInput, Failed
from tlmd.types import Task

SCHEMA_VERSION = 2

_TASKS = """
CREATE TABLE tasks (
    row INTEGER PRIMARY KEY, id TEXT NOT NULL, fingerprint TEXT NOT NULL, payload BLOB NOT NULL,
    UNIQUE (id, fingerprint)
);
"""
_SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
{_TASKS}
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
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Database:
    """One SQLite file with the schema of tlmd and at most one writer. Thread-safe.

    Opening raises `BadInput` if the file is damaged or was written by a newer tlmd, and `Failed` if
    another process has opened it for writing. With ``read_only`` it can be opened beside a writer.
    All methods raise `Failed` if the disk is full or broken.
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
        """Close the file, so that other processes can write it. May be called twice."""
        with self._mutex:
            self._db.close()
            self._unlock()

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
            raise BadInput(self._unusable("is damaged"))
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
        if not tables and not read_only:
            db.executescript(
                f"BEGIN; {_SCHEMA} INSERT INTO meta VALUES ('schema', {SCHEMA_VERSION}); COMMIT;"
            )
            return
        if "meta" not in tables:
            raise BadInput(self._unusable("is not a record store of tlmd"))
        row = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        version = int(row[0]) if row else 0
        if version > SCHEMA_VERSION:
            raise BadInput(
                f"{self._path} was written by a newer tlmd (schema {version}, this one reads up to "
                f"{SCHEMA_VERSION}); upgrade tlmd or use another --state-dir"
            )
        if version < 1:
            raise BadInput(self._unusable("has no schema version"))
        if version < 2 and not read_only:
            self._add_fingerprints(db)

    def _add_fingerprints(self, db: sqlite3.Connection) -> None:
        """From schema 1 to 2: a task may be stored for several kinds of hardware."""
        rows = db.execute("SELECT id, payload FROM tasks ORDER BY rowid").fetchall()
        named = [(key, self._unpack(Task, data).target.fingerprint, data) for key, data in rows]
        db.execute("BEGIN IMMEDIATE")
        db.execute("DROP TABLE tasks")
        db.execute(_TASKS)
        db.executemany("INSERT INTO tasks (id, fingerprint, payload) VALUES (?, ?, ?)", named)
        db.execute("UPDATE meta SET value = 2 WHERE key = 'schema'")
        db.execute("COMMIT")

    def _unusable(self, reason: str) -> str:
        return f"{self._path} {reason}; move it away (tlmd makes a new one) or restore a copy"

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._mutex, self._errors():
            return self._db.execute(query, values).fetchall()

    def _write_many(self, query: str, rows: list[tuple[Any, ...]]) -> None:
        with self._transaction():
            self._db.executemany(query, rows)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit all writes of the block, or none. A nested block is part of the outer one."""
        with self._mutex, self._errors():
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # if the disk is full, SQLite has rolled back itself
                    self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in _DAMAGED:
                raise BadInput(self._unusable(f"is damaged ({error})")) from error
            if code == sqlite3.SQLITE_FULL:
                raise Failed(f"no space left to write {self._path}; free some disk") from error
            if isinstance(error, sqlite3.OperationalError):
                raise Failed(f"cannot use {self._path}: {error}; check the disk") from error
            raise

    def _unpack(self, cls: Any, payload: bytes) -> Any:
        try:
            return wire.unpack(cls, payload)
        except wire.WireError as error:
            raise BadInput(self._unusable(f"is damaged ({error})")) from error

    def _unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def _lock(path: Path) -> int:
    """Take the writer's lock. The system releases it when the process ends in any way."""
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
