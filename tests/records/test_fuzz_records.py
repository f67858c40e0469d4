"""Damaged record stores, data sets and files of tasks: one clear line, nothing else is touched."""

from __future__ import annotations

import gzip
import lzma
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records.test_store import record, task
from tests.support.fuzzing import changed, damaged, few, one_line, values
from tlmd.daemon.job_archive import JobArchive
from tlmd.daemon.job_documents import make_spec
from tlmd.data import wire
from tlmd.data.types import Baseline, JobState
from tlmd.records import backup, job_specs
from tlmd.records.dataset import read_dataset, write_dataset
from tlmd.records.store import RecordStore
from tlmd.records.task_file import read_tasks, save_tasks


def fill(path: Path) -> bytes:
    """A store with something in every table; its bytes."""
    with RecordStore(path) as store:
        store.add_tasks([task("t"), task("u")])
        store.add_records([record(i, None if i % 5 == 4 else 1e-3 / (i + 1)) for i in range(12)])
        store.put_baseline(Baseline("t", 0.5, "here"))
        store.put_batch(3, b"plan")
        for name, state in (("m-1", JobState.DONE), ("m-2", JobState.RUNNING)):
            spec = replace(make_spec({"model": "m"}), id=name, progress={"done": 1})
            job_specs.save(store, spec, state)
    return path.read_bytes()


def use(path: Path) -> None:
    """Everything that a daemon or a command reads, and one write."""
    with RecordStore(path) as store:
        archive = JobArchive(path.parent, store, 10)
        reads: list[Callable[[], object]] = [
            store.tasks,
            store.counts,
            store.last_batch,
            store.check_records,
            lambda: store.records("t", "here"),
            lambda: store.best("t", "here"),
            lambda: store.baseline("t", "here"),
            lambda: store.newest_records(5, True, ["t"]),
            lambda: store.packed_records(0, 5),
            lambda: job_specs.unfinished(store),
            lambda: archive.summaries(5),
            lambda: archive.detail("m-1"),
            lambda: store.add_records([record(40)]),
        ]
        for read in reads:
            one_line(read)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


class Content:
    """Bytes that are not printed where a test fails."""

    def __init__(self, data: bytes) -> None:
        self.data = data


@pytest.fixture(scope="module")
def whole(folder: Path) -> Content:
    return Content(fill(folder / "whole.sqlite"))


def emptied(folder: Path) -> Path:
    """Where a store goes; nothing lies beside it."""
    path = folder / "state" / "records.sqlite"
    path.parent.mkdir(exist_ok=True)
    for old in path.parent.iterdir():
        old.unlink(missing_ok=True)
    return path


@few(60)
@given(st.data())
def test_a_damaged_store(folder: Path, whole: Content, data: st.DataObject) -> None:
    path = emptied(folder)
    path.write_bytes(data.draw(damaged(whole.data)))
    if data.draw(st.booleans()):
        (path.parent / "records.sqlite-wal").write_bytes(data.draw(st.binary(max_size=200)))
    one_line(lambda: use(path))
    one_line(lambda: RecordStore(path, read_only=True).close())
    names = {entry.name for entry in path.parent.iterdir()}
    assert names <= {f"records.sqlite{end}" for end in ("", "-wal", "-shm", ".lock")}
    assert {entry.name for entry in folder.iterdir()} <= {"state", "whole.sqlite", *_OTHERS}


_OTHERS = ("whole.sqlite.lock", "made", "imported", "backups")
_TABLES = {
    "tasks": ["id", "fingerprint", "payload"],
    "records": ["task", "batch", "created", "ok", "verified", "compared", "seconds", "payload"],
    "jobs": ["id", "state", "payload"],
    "baselines": ["payload"],
    "batches": ["number", "payload"],
    "meta": ["value"],
}


@few(40)
@given(st.data())
def test_a_store_with_other_values(folder: Path, whole: Content, data: st.DataObject) -> None:
    path = emptied(folder)
    path.write_bytes(whole.data)
    table = data.draw(st.sampled_from(sorted(_TABLES)))
    column = data.draw(st.sampled_from(_TABLES[table]))
    with sqlite3.connect(path) as db:
        (old_value,) = db.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchone()
        value = data.draw(st.none() | st.floats() | st.text(max_size=4) | st.binary(max_size=9))
        if isinstance(old_value, bytes) and old_value != b"plan":
            plain = msgpack.unpackb(old_value, strict_map_key=False)
            value = _packed(data.draw(changed(plain)))
        try:
            db.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
        except (sqlite3.Error, UnicodeEncodeError):
            return
    db.close()
    one_line(lambda: use(path))


def _packed(plain: Any) -> bytes:
    """As msgpack, with what it cannot hold left out."""
    try:
        packed: bytes = msgpack.packb(plain, unicode_errors="surrogatepass")
    except (OverflowError, ValueError):
        return b"\xc1"
    return packed


@pytest.mark.parametrize(
    ("suffix", "compression"), [("", None), (".gz", gzip), (".xz", lzma)], ids=["plain", "gz", "xz"]
)
@few(60)
@given(st.data())
@pytest.mark.slow
def test_a_damaged_data_set(
    folder: Path, suffix: str, compression: Any, data: st.DataObject
) -> None:
    path = folder / "made" / f"set.msgpack{suffix}"
    path.parent.mkdir(exist_ok=True)
    write_dataset(path, [task("t")], [record(0), record(1, None)])
    raw = compression.decompress(path.read_bytes()) if suffix else path.read_bytes()
    kind = data.draw(st.sampled_from(["bytes", "values", "inner"]))
    if kind == "bytes":
        path.write_bytes(data.draw(damaged(path.read_bytes())))
    else:
        changes = damaged(raw) if kind == "inner" else changed(msgpack.unpackb(raw)).map(_packed)
        new = data.draw(changes)
        path.write_bytes(compression.compress(new) if suffix else new)
    one_line(lambda: read_dataset(path))
    with RecordStore(folder / "imported") as store:
        one_line(lambda: store.import_dataset(path))
        store.check_records()
    (folder / "imported").unlink()


@few(60)
@given(st.data())
def test_a_damaged_file_of_tasks(folder: Path, data: st.DataObject) -> None:
    path = folder / "made" / "job.tasks"
    save_tasks(path, [task("t"), task("u")])
    raw = path.read_bytes()
    plain = changed(msgpack.unpackb(raw)).map(_packed)
    path.write_bytes(data.draw(damaged(raw) | plain | st.binary(max_size=40)))
    one_line(lambda: read_tasks(path))


@few(25)
@given(st.data())
def test_a_damaged_backup(folder: Path, whole: Content, data: st.DataObject) -> None:
    place = folder / "backups"
    place.mkdir(exist_ok=True)
    file, state, there = place / "file", place / "state", place / "there"
    if not state.exists():
        fill(state / "records.sqlite")
        save_tasks(state / "jobs" / "m-1.tasks", [task("t")])
    backup.save(state, file)
    file.write_bytes(data.draw(damaged(file.read_bytes())))
    one_line(lambda: backup.restore(file, there))
    for path in sorted(there.rglob("*"), reverse=True):
        assert path.is_dir() or path.relative_to(there).parts[0] in ("jobs", "records.sqlite")
        path.rmdir() if path.is_dir() else path.unlink()
    assert {p.name for p in place.iterdir()} <= {"file", "state", "there"}


@few(60)
@given(values, st.sampled_from([JobState.RUNNING, JobState.DONE]))
def test_job_payloads_of_any_form(tmp_path_factory: Any, value: Any, state: JobState) -> None:
    with RecordStore(tmp_path_factory.mktemp("jobs") / "records.sqlite") as store:
        store.put_job("j", str(state), _packed(value))
        one_line(lambda: job_specs.newest(store, 5))
        one_line(lambda: job_specs.unfinished(store))
        assert wire.pack(1)
