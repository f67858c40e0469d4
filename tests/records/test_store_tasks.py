"""Tasks and switches in the record store: a task is stored once per kind of hardware."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.records.test_store import TARGET, store, task
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
