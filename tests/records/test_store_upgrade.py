"""Stores that an older tlmd has written are upgraded when they are opened, and lose nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.records.test_store import record, task
from tlmd.data import wire
from tlmd.data.errors import BadInput
from tlmd.data.types import Record
from tlmd.records.store import Counts, RecordStore

_TASKS = {
    1: "CREATE TABLE tasks (id TEXT PRIMARY KEY, payload BLOB NOT NULL);",
    2: "CREATE TABLE tasks (row INTEGER PRIMARY KEY, id TEXT NOT NULL, fingerprint TEXT NOT NULL,"
    " payload BLOB NOT NULL, UNIQUE (id, fingerprint));",
}
_OTHERS = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE records (
    row INTEGER PRIMARY KEY, candidate_id TEXT NOT NULL, task_id TEXT NOT NULL,
    fingerprint TEXT NOT NULL, batch INTEGER NOT NULL, created REAL NOT NULL, ok INTEGER NOT NULL,
    verified INTEGER NOT NULL, seconds REAL, module_hash TEXT NOT NULL, payload BLOB NOT NULL,
    UNIQUE (candidate_id, fingerprint, batch)
);
CREATE INDEX records_by_task ON records (task_id, fingerprint, candidate_id, created);
CREATE TABLE baselines (task_id TEXT NOT NULL, fingerprint TEXT NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (task_id, fingerprint));
CREATE TABLE batches (number INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE checkpoints (version INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE jobs (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL,
    payload BLOB NOT NULL);
"""
RECORDS = [record(i, None if i % 3 == 2 else 1e-3 / (i + 1), created=float(i)) for i in range(10)]


def make(path: Path, version: int, payloads: dict[int, bytes] | None = None) -> None:
    """A store as a tlmd of that schema wrote it."""
    db = sqlite3.connect(path)
    db.executescript(_TASKS[version] + _OTHERS)
    db.execute("INSERT INTO meta VALUES ('schema', ?)", (version,))
    for known in (task("b"), task("a")):
        key = (known.id,) if version == 1 else (None, known.id, "here")
        marks = ", ".join("?" * (len(key) + 1))
        db.execute(f"INSERT INTO tasks VALUES ({marks})", (*key, wire.pack(known)))
    rows = [old(row, one) for row, one in enumerate(RECORDS)]
    db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    db.executemany("UPDATE records SET payload = ?2 WHERE row = ?1", list((payloads or {}).items()))
    db.commit()
    db.close()


def old(row: int, one: Record) -> tuple[object, ...]:
    outcome, candidate = one.outcome, one.candidate
    named = (row, candidate.id, candidate.task_id, one.fingerprint, one.batch, one.created)
    return (*named, outcome.ok, outcome.verified, outcome.seconds, "", wire.pack(one))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("read_only", [False, True])
def test_an_older_store_is_upgraded(tmp_path: Path, version: int, read_only: bool) -> None:
    path = tmp_path / "old.db"
    make(path, version)
    for _ in range(2):
        with RecordStore(path, read_only=read_only) as store:
            assert store.tasks() == [task("b"), task("a")]
            assert store.all_records() == RECORDS == store.records("t", "here")
            assert store.counts() == Counts(2, 10, 3)
            best = store.best("t", "here")
            assert best is not None and best == RECORDS[9]


def test_a_damaged_record_stops_the_upgrade_which_then_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    make(path, 2, {4: b"not a record"})
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(BadInput, match="damaged"):
            RecordStore(path)
    db = sqlite3.connect(path)
    assert db.execute("SELECT COUNT(*) FROM records").fetchone() == (10,)
    assert db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == (2,)
    db.close()
    assert len(path.read_bytes()) == len(before)
