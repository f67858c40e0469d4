"""The tables of the record store, and how those of an older tlmd become the newest ones."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from typing import Any

from tlmd.data import wire
from tlmd.data.types import Record, Task
from tlmd.records.signature import signature

SCHEMA_VERSION = 4

_log = logging.getLogger("tlmd.records")
_PORTION = 2000  # records that are moved at a time

_TASKS = """
CREATE TABLE tasks (
    row INTEGER PRIMARY KEY, id TEXT NOT NULL, fingerprint TEXT NOT NULL, payload BLOB NOT NULL,
    UNIQUE (id, fingerprint)
);
"""
# Records name their task by a number: what is written for one task then lies side by side in the
# indexes, so that appending stays fast however large they are.
_RECORDS = """
CREATE TABLE task_keys (
    key INTEGER PRIMARY KEY, task_id TEXT NOT NULL, fingerprint TEXT NOT NULL,
    UNIQUE (task_id, fingerprint)
);
CREATE TABLE records (
    row INTEGER PRIMARY KEY,
    task INTEGER NOT NULL,
    candidate BLOB NOT NULL,
    batch INTEGER NOT NULL,
    created REAL NOT NULL,
    ok INTEGER NOT NULL,
    verified INTEGER NOT NULL,
    compared INTEGER NOT NULL,
    seconds REAL,
    payload BLOB NOT NULL,
    UNIQUE (task, candidate, batch)
);
CREATE INDEX records_by_speed ON records (task, compared, seconds, created)
    WHERE verified AND seconds IS NOT NULL;
CREATE TRIGGER record_added AFTER INSERT ON records BEGIN
    UPDATE meta SET value = value + 1 WHERE key = 'records';
    UPDATE meta SET value = value + 1 WHERE key = 'failed' AND NOT new.ok;
END;
CREATE TRIGGER record_changed AFTER UPDATE OF ok ON records WHEN new.ok != old.ok BEGIN
    UPDATE meta SET value = value + old.ok - new.ok WHERE key = 'failed';
END;
CREATE TRIGGER record_removed AFTER DELETE ON records BEGIN
    UPDATE meta SET value = value - 1 WHERE key = 'records';
    UPDATE meta SET value = value - 1 WHERE key = 'failed' AND NOT old.ok;
END;
INSERT INTO meta VALUES ('records', 0), ('failed', 0), ('open', 0);
"""
_SIGNATURES = """
CREATE TABLE signatures (
    task_id TEXT NOT NULL, fingerprint TEXT NOT NULL, signature TEXT NOT NULL,
    PRIMARY KEY (task_id, fingerprint)
) WITHOUT ROWID;
CREATE INDEX tasks_by_signature ON signatures (signature, fingerprint);
INSERT INTO meta VALUES ('carried', 0);
"""
_JOBS_BY_STATE = "CREATE INDEX jobs_by_state ON jobs (state);"
_SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
{_TASKS}
{_RECORDS}
CREATE TABLE baselines (
    task_id TEXT NOT NULL, fingerprint TEXT NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (task_id, fingerprint)
);
CREATE TABLE batches (number INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE checkpoints (version INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE jobs (
    row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, payload BLOB NOT NULL
);
{_SIGNATURES}
{_JOBS_BY_STATE}
"""
ADD_SIGNATURE = "INSERT OR REPLACE INTO signatures VALUES (?, ?, ?)"
ADD_TASK_KEY = "INSERT OR IGNORE INTO task_keys (task_id, fingerprint) VALUES (?, ?)"
ADD_RECORD = """
INSERT INTO records (task, candidate, batch, created, ok, verified, compared, seconds, payload)
SELECT key, ?, ?, ?, ?, ?, ?, ?, ? FROM task_keys WHERE task_id = ? AND fingerprint = ?
ON CONFLICT (task, candidate, batch) DO UPDATE SET created = excluded.created, ok = excluded.ok,
    verified = excluded.verified, compared = excluded.compared, seconds = excluded.seconds,
    payload = excluded.payload WHERE excluded.created >= records.created
"""


def create(db: sqlite3.Connection) -> None:
    """Make all tables of an empty file."""
    db.executescript(
        f"BEGIN; {_SCHEMA} INSERT INTO meta VALUES ('schema', {SCHEMA_VERSION}); COMMIT;"
    )


def upgrade(db: sqlite3.Connection, version: int) -> None:
    """Bring tables of an older `version` up to date, completely or not at all.

    Raises `wire.WireError` where a stored task or record is damaged.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        if version < 2:
            _add_fingerprints(db)
        if version < 3:
            _number_tasks(db)
        if version < 4:
            _add_signatures(db)
        db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (SCHEMA_VERSION,))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _add_fingerprints(db: sqlite3.Connection) -> None:
    """From schema 1 to 2: a task may be stored for several kinds of hardware."""
    rows = db.execute("SELECT id, payload FROM tasks ORDER BY rowid").fetchall()
    named = [(key, wire.unpack(Task, data).target.fingerprint, data) for key, data in rows]
    db.execute("DROP TABLE tasks")
    _run(db, _TASKS)
    db.executemany("INSERT INTO tasks (id, fingerprint, payload) VALUES (?, ?, ?)", named)


def _number_tasks(db: sqlite3.Connection) -> None:
    """From schema 2 to 3: numbers for tasks, an index for the best program, and counts."""
    _log.info("upgrading the record store; this is done once")
    db.execute("ALTER TABLE records RENAME TO old_records")
    _run(db, _RECORDS)
    db.execute(
        "INSERT INTO task_keys (task_id, fingerprint)"
        " SELECT DISTINCT task_id, fingerprint FROM old_records"
    )
    for portion in _portions(db):
        db.executemany(ADD_RECORD, [_moved(*row) for row in portion])
    db.execute("DROP TABLE old_records")
    db.execute(_JOBS_BY_STATE)


def _add_signatures(db: sqlite3.Connection) -> None:
    """From schema 3 to 4: tasks are also found by their computations."""
    _run(db, _SIGNATURES)
    for (payload,) in db.execute("SELECT payload FROM tasks").fetchall():
        task = wire.unpack(Task, payload)
        db.execute(ADD_SIGNATURE, (*task.key, signature(task)))


def _portions(db: sqlite3.Connection) -> Iterator[list[Any]]:
    last = -1
    query = (
        "SELECT row, task_id, fingerprint, payload FROM old_records"
        f" WHERE row > ? ORDER BY row LIMIT {_PORTION}"
    )
    while portion := db.execute(query, (last,)).fetchall():
        yield portion
        last = portion[-1][0]


def _moved(_row: int, task_id: str, fingerprint: str, payload: bytes) -> tuple[Any, ...]:
    return record_row(wire.unpack(Record, payload), payload)


def record_row(record: Record, payload: bytes) -> tuple[Any, ...]:
    """The values of `ADD_RECORD` for a record and its packed form."""
    outcome, candidate = record.outcome, record.candidate
    finite = outcome.seconds < float("inf")
    return (
        bytes.fromhex(candidate.id),
        record.batch,
        record.created,
        outcome.ok,
        outcome.verified,
        outcome.compared,
        outcome.seconds if finite else None,
        payload,
        candidate.task_id,
        record.fingerprint,
    )


def _run(db: sqlite3.Connection, script: str) -> None:
    """Run several statements inside the open transaction, which `executescript` would commit."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            db.execute(statement)
            statement = ""
