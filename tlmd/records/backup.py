"""Backups: one SQLite file with the records and jobs, and files of a state directory.

The files are the checkpoints and the tasks of the jobs. A backup holds no secrets, no logs and
nothing that can be made again. It is a record store with one more table.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tlmd.data.errors import BadInput, Failed, in_one_line
from tlmd.processes.durable import sync
from tlmd.records.store import RecordStore

_STORE = "records.sqlite"
_CURRENT = "checkpoints/current.json"
_KINDS = ("checkpoints/v*/*", _CURRENT, "jobs/*.tasks")
# Names that may be in a backup; they become paths.
_NAMES = re.compile(r"checkpoints/(v\d{6,}/[a-z_]+\.[a-z]+|current\.json)|jobs/[\w.+-]+\.tasks")
_TABLE = "CREATE TABLE files (name TEXT PRIMARY KEY, sha256 TEXT NOT NULL, content BLOB NOT NULL)"
_FILE = "SELECT sha256, content FROM files WHERE name = ?"
_ATTEMPTS = 10


@dataclass(frozen=True)
class Saved:
    """The content of a backup.

    Example: ``Saved(records=400, files=7)``.
    """

    records: int
    files: int
    """Files of checkpoints and of tasks."""


def save(state_dir: Path, path: Path) -> Saved:
    """Write a backup of a state directory, completely or not at all; a daemon may run on it.

    Raises `BadInput` where nothing was measured yet or the store is damaged, and `Failed` on a full
    disk.
    """
    partial = path.with_name(f".{path.name}.partial")
    with _writing(partial, path):
        partial.touch()
        with RecordStore(state_dir / _STORE, read_only=True) as store:
            store.copy_to(partial)
            records = store.counts().records
        with contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as db:
            db.execute(_TABLE)
            count = _save_files(db, state_dir)
        sync(partial)
        partial.replace(path)
    return Saved(records, count)


def _save_files(db: sqlite3.Connection, state_dir: Path) -> int:
    """Add the files; the number of them. The version in force is among them.

    The daemon may publish and remove versions meanwhile. Then they are read again.
    """
    for _ in range(_ATTEMPTS):
        db.execute("BEGIN")
        for kind in _KINDS:
            for file in sorted(state_dir.glob(kind)):
                with contextlib.suppress(FileNotFoundError):
                    content = file.read_bytes()
                    row = (str(file.relative_to(state_dir)), _sha256(content), content)
                    db.execute("INSERT INTO files VALUES (?, ?, ?)", row)
        if _has_current(db):
            db.execute("COMMIT")
            return int(db.execute("SELECT COUNT(*) FROM files").fetchone()[0])
        db.execute("ROLLBACK")
    raise Failed("the checkpoints change all the time; pause the daemon and try again")


def _has_current(db: sqlite3.Connection) -> bool:
    """Whether the version that `current.json` names is in the table; True where none is named."""
    row = db.execute("SELECT content FROM files WHERE name = ?", (_CURRENT,)).fetchone()
    try:
        version = int(json.loads(row[0])["current"]) if row else 0
    except (ValueError, KeyError, TypeError):
        return True  # it is damaged: the registry takes the newest version
    name = f"checkpoints/v{version:06d}/manifest.json"
    stored = db.execute("SELECT 1 FROM files WHERE name = ?", (name,)).fetchone()
    return version == 0 or stored is not None


def restore(path: Path, state_dir: Path) -> Saved:
    """Make a state directory from a backup, on any machine and under any path.

    Raises `BadInput` for another or a damaged file, one of a newer tlmd, and where the directory
    has records already; then nothing is written.
    """
    target, partial = state_dir / _STORE, state_dir / f".{_STORE}.partial"
    if target.exists():
        raise BadInput(f"{state_dir} has records already; give an empty --state-dir")
    if not path.is_file():
        raise BadInput(f"no such file: {path}; `tlmd backup` makes one")
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with _writing(partial, state_dir), _damage_of(path):
        state_dir.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
            names = _check(db, path)
            with contextlib.closing(sqlite3.connect(partial)) as copy:
                db.backup(copy)
            records = _restore_records(partial, path)
            for name in names:
                _restore_file(db, name, state_dir)
        partial.replace(target)
    return Saved(records, len(names))


def _restore_records(partial: Path, path: Path) -> int:
    """Make a record store of the copy of a backup; the number of its records."""
    with contextlib.closing(sqlite3.connect(partial)) as copy:
        copy.execute("DROP TABLE files")
        copy.commit()
    try:
        with RecordStore(partial) as store:  # upgrades an older schema, refuses a newer one
            store.check_records()
            records = store.counts().records
    except BadInput as error:
        raise BadInput(str(error).replace(str(partial), str(path))) from error
    finally:
        for suffix in ("-wal", "-shm", ".lock"):
            Path(f"{partial}{suffix}").unlink(missing_ok=True)
    sync(partial)
    return records


def _check(db: sqlite3.Connection, path: Path) -> list[str]:
    """The names of the files in a backup. Raises `BadInput` where it is damaged or another file."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'files'").fetchone():
        raise BadInput(f"{path} is no backup of tlmd; make one with `tlmd backup`")
    if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        raise BadInput(f"{path} is damaged; use another backup")
    names = [row[0] for row in db.execute("SELECT name FROM files ORDER BY name")]
    for name in names:
        if not isinstance(name, str) or not _NAMES.fullmatch(name):
            raise BadInput(f"{path} holds a file {name!r} that is not one of tlmd")
        digest, content = db.execute(_FILE, (name,)).fetchone()
        if not isinstance(content, bytes) or _sha256(content) != digest:
            raise BadInput(f"{path} is damaged ({name}); use another backup")
    return names


def _restore_file(db: sqlite3.Connection, name: str, state_dir: Path) -> None:
    file = state_dir / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(db.execute(_FILE, (name,)).fetchone()[1])
    sync(file)


@contextlib.contextmanager
def _writing(partial: Path, where: Path) -> Iterator[None]:
    """Errors of the disk as `Failed`; no unfinished file stays."""
    try:
        partial.unlink(missing_ok=True)
        yield
    except (OSError, sqlite3.OperationalError) as error:
        reason = getattr(error, "strerror", None) or in_one_line(error)
        raise Failed(f"cannot write {where}: {reason}; free some disk or use another") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError:
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path} is no backup of tlmd or is damaged ({in_one_line(error)})"
        ) from error


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
