"""Tasks in the record store: one per kind of hardware; stores of an older schema are upgraded."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

from tests.test_records_store import TARGET, record, store, task
from tlmd import wire
from tlmd.records.store import RecordStore

__all__ = ["store"]  # a fixture


def test_a_task_on_two_kinds_of_hardware_is_two_tasks(store: RecordStore, tmp_path: Path) -> None:
    other = replace(task(), target=replace(TARGET, fingerprint="there", vector_bits=128))
    store.add_tasks([task(), other])
    assert store.tasks() == [task(), other]
    store.export_dataset(tmp_path / "both.msgpack")
    with RecordStore(tmp_path / "copy.db") as copy:
        copy.add_task(other)
        copy.import_dataset(tmp_path / "both.msgpack")
        assert sorted(known.key for known in copy.tasks()) == [("t", "here"), ("t", "there")]


def test_a_switch_is_kept(tmp_path: Path) -> None:
    for value in (True, False):
        with RecordStore(tmp_path / "records.db") as store:
            store.set_flag("paused", value)
        with RecordStore(tmp_path / "records.db") as store:
            assert store.flag("paused") is value and not store.flag("other")


def test_a_store_of_schema_1_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with RecordStore(path) as store:
        store.add_record(record())
    raw = sqlite3.connect(path)
    raw.executescript(
        "DROP TABLE tasks; CREATE TABLE tasks (id TEXT PRIMARY KEY, payload BLOB NOT NULL);"
        "UPDATE meta SET value = 1 WHERE key = 'schema';"
    )
    raw.executemany("INSERT INTO tasks VALUES (?, ?)", [(n, wire.pack(task(n))) for n in "ba"])
    raw.commit()
    raw.close()
    with RecordStore(path, read_only=True) as store:
        assert store.tasks() == [task("b"), task("a")] and len(store.all_records()) == 1
    for _ in range(2):
        with RecordStore(path) as store:
            assert store.tasks() == [task("b"), task("a")]
            assert len(store.all_records()) == 1
