"""The SQLite file below the record store: opening, checking, locking, transactions, errors."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tlmd.data import wire
from tlmd.data.errors import BadInput, DiskFull, Failed, in_one_line
from tlmd.records import schema
from tlmd.records.schema import SCHEMA_VERSION

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_SIZES = ("page_count", "page_size")
_CACHE_KIB = 64 << 10
_FULL_BYTES = 256 << 10  # a disk with less is full
CHECKED_PAGES = 16 << 10
"""Pages (of 4 KiB) of the largest file that is checked whole when it is opened."""
BACKGROUND_PAGES = 256 << 10
"""Pages of the largest file that is checked later, beside the work. A larger one is checked only if
its writer was killed."""
_LOG_PAGES = 8000  # in the write-ahead log before they are moved to the file


class Database:
    """One SQLite file with the schema of tlmd and at most one writer. Thread-safe.

    Opening raises `BadInput` if the file is damaged or was written by a newer tlmd, and `Failed` if
    another process has opened it for writing. With ``read_only`` it can be opened beside a writer.
    All methods raise `DiskFull` if the disk is full, `Failed` if it is broken, and `BadInput` where
    they find damage.

    Opening a file of more than `CHECKED_PAGES` checks its length, its tables and its last record.
    ``needs_check`` then says whether `check_whole`, which reads all of it, should follow.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self._path = Path(path)
        self.needs_check = False
        """It is too large to be checked when it is opened: call `check_whole` beside the work."""
        self._read_only = read_only
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
            if self._lock_fd >= 0:
                with contextlib.suppress(sqlite3.Error):  # a full disk: it is checked next time
                    self._db.execute("UPDATE meta SET value = 0 WHERE key = 'open'")
            self._db.close()
            self._unlock()

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy of the file, as it is now, to a new file; others may write on."""
        with self._errors():
            source = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
            with contextlib.closing(source), contextlib.closing(sqlite3.connect(path)) as copy:
                source.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
                copy.execute("UPDATE meta SET value = 0 WHERE key = 'open'")
                copy.commit()

    def check_whole(self) -> None:
        """Read the whole file and its indexes. Raises `BadInput` where they are damaged.

        It reads a gigabyte in a few seconds, on a connection of its own, so that other threads and
        processes can read and write meanwhile.
        """
        with self._errors():
            db = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
            with contextlib.closing(db):
                self._check_pages(db)

    def _open(self, read_only: bool) -> sqlite3.Connection:
        with self._errors():
            uri = f"{self._path.absolute().as_uri()}{'?mode=ro' if read_only else ''}"
            db = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
            try:
                db.execute("PRAGMA busy_timeout = 10000")
                db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
                if not read_only:
                    db.execute("PRAGMA journal_mode = WAL")
                    db.execute("PRAGMA synchronous = FULL")
                    db.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
                self._check(db)
            except BaseException:
                db.close()
                raise
        return db

    def _check(self, db: sqlite3.Connection) -> None:
        """Check the file in bounded time, and make or upgrade its tables."""
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
        if not tables and not self._read_only:
            schema.create(db)
        elif "meta" not in tables:
            raise BadInput(self._unusable("is not a record store of tlmd"))
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        is_small = pages <= CHECKED_PAGES
        if is_small:
            self._check_pages(db)
        self._check_schema(db)
        if not is_small:
            self._check_length(db)
            db.execute("SELECT payload FROM records ORDER BY row DESC LIMIT 1").fetchone()
        if not self._read_only:
            was_open = db.execute("SELECT value FROM meta WHERE key = 'open'").fetchone()
            was_killed = bool(was_open and was_open[0])
            self.needs_check = not is_small and (was_killed or pages <= BACKGROUND_PAGES)
            db.execute("INSERT OR REPLACE INTO meta VALUES ('open', 1)")

    def _check_pages(self, db: sqlite3.Connection) -> None:
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise BadInput(self._unusable("is damaged"))

    def _check_length(self, db: sqlite3.Connection) -> None:
        """A file that lost its end still opens; its last pages are only missed when they are read.

        Entries of the write-ahead log need not be in the file yet.
        """
        pages, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in _SIZES)
        log = Path(f"{self._path}-wal")
        if log.exists() and log.stat().st_size:
            return
        if self._path.stat().st_size < pages * size:
            raise BadInput(self._unusable("is damaged (its end is missing)"))

    def _check_schema(self, db: sqlite3.Connection) -> None:
        row = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        version = row[0] if row else 0
        if not isinstance(version, int):
            raise BadInput(self._unusable("is damaged (its schema version is no number)"))
        if version > SCHEMA_VERSION:
            raise BadInput(
                f"{self._path} was written by a newer tlmd (schema {version}, this one reads up to "
                f"{SCHEMA_VERSION}); upgrade tlmd or use another --state-dir"
            )
        if version < 1:
            raise BadInput(self._unusable("has no schema version"))
        if version == SCHEMA_VERSION:
            return
        if self._read_only:
            type(self)(self._path).close()
            return
        try:
            schema.upgrade(db, version)
        except wire.WireError as error:
            raise BadInput(self._unusable(f"is damaged ({in_one_line(error)})")) from error

    def _unusable(self, reason: str) -> str:
        return f"{self._path} {reason}; move it away (tlmd makes a new one) or restore a copy"

    def _read(self, query: str, values: tuple[Any, ...] = (), *kinds: type[Any]) -> list[Any]:
        """All rows. Raises `BadInput` where the columns are not of these kinds, if they are given.

        SQLite stores any kind of value in any column, so damage may show as another kind.
        """
        with self._mutex, self._errors():
            rows = self._db.execute(query, values).fetchall()
        if kinds and not all(all(map(isinstance, row, kinds)) for row in rows):
            raise BadInput(self._unusable("is damaged (a value is of another kind)"))
        return rows

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
                raise BadInput(self._unusable(f"is damaged ({in_one_line(error)})")) from error
            if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and self._is_full()):
                raise DiskFull(f"no space left to write {self._path}; free some disk") from error
            if isinstance(error, sqlite3.OperationalError):
                reason = in_one_line(error)
                raise Failed(f"cannot use {self._path}: {reason}; check the disk") from error
            raise
        except UnicodeDecodeError as error:  # of a text, or of SQLite's own message
            raise BadInput(self._unusable("is damaged (a text is not UTF-8)")) from error

    def _is_full(self) -> bool:
        """SQLite says only "disk I/O error" where its files beside the store find no space."""
        try:
            return shutil.disk_usage(self._path.parent).free < _FULL_BYTES
        except OSError:
            return False

    def _unpack(self, cls: Any, payload: bytes) -> Any:
        try:
            return wire.unpack(cls, payload)
        except wire.WireError as error:
            raise BadInput(self._unusable(f"is damaged ({in_one_line(error)})")) from error

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
