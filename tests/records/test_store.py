"""The record store: round trips, newest wins, locks, damage, and a writer that is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tlmd.data.errors import BadInput, DiskFull, Failed
from tlmd.data.selection import fastest
from tlmd.data.types import Baseline, Candidate, Outcome, Record, Status, TargetInfo, Task, Timing
from tlmd.records.store import Counts, RecordStore

TARGET = TargetInfo("{}", "cpu", "x86_64", "avx2", 256, 1, 32768, 1048576, 0, "here")
ROOT = Path(__file__).parents[2]


def task(name: str = "t") -> Task:
    return Task(name, f"fused_{name}", 2, 1e6, '{"root_index": 1}', TARGET)


def record(
    index: int = 0,
    seconds: float | None = 1e-3,
    *,
    name: str = "t",
    batch: int = 0,
    created: float = 0.0,
    verified: bool = True,
    module_hash: str = "",
) -> Record:
    if seconds is None:
        outcome = Outcome(Status.CRASH, detail="SIGSEGV (11)")
    else:
        outcome = Outcome(Status.OK, samples=(seconds,), verified=verified)
    candidate = Candidate(name, 0, ((index,),))
    return Record(candidate, outcome, 0, batch, "here", module_hash, created)


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path / "records.db")


seconds = st.floats(1e-9, 10, allow_nan=False)
outcomes = st.builds(
    Outcome,
    st.sampled_from(Status),
    samples=st.lists(seconds, max_size=4).map(tuple),
    detail=st.text(max_size=20),
    drift=st.floats(0.5, 2),
    noisy=st.booleans(),
    verified=st.booleans(),
    max_abs_err=st.none() | st.just(float("inf")) | seconds,
    energy_j=st.none() | seconds,
    compared=st.booleans(),
    timing=st.builds(Timing, build=seconds, run=seconds),
)
candidates = st.builds(
    Candidate,
    st.sampled_from(["t", "u"]),
    st.integers(0, 2),
    st.lists(st.lists(st.integers(-2, 2**40), max_size=4).map(tuple), max_size=3).map(tuple),
)
some_records = st.lists(
    st.builds(
        Record,
        candidates,
        outcomes,
        version=st.integers(-1, 5),
        batch=st.integers(0, 3),
        fingerprint=st.sampled_from(["here", "there"]),
        module_hash=st.text("0123456789abcdef", max_size=4),
        created=st.sampled_from([0.0, 1.0, 2.0]),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(some_records)
def test_what_was_recorded_comes_back(
    tmp_path_factory: pytest.TempPathFactory, given_: list[Record]
) -> None:
    newest: dict[tuple[str, str, int], Record] = {}
    for one in given_:
        key = (one.candidate.id, one.fingerprint, one.batch)
        if key not in newest or one.created >= newest[key].created:
            newest[key] = one
    path = tmp_path_factory.mktemp("store") / "records.db"
    with RecordStore(path) as store:
        store.add_records(given_)
        store.add_records(given_)  # twice is harmless
    with RecordStore(path) as store:
        assert sorted(map(repr, store.all_records())) == sorted(map(repr, newest.values()))
        for task_id in ("t", "u"):
            for machine in ("here", "there"):
                mine = [
                    r
                    for r in newest.values()
                    if (r.candidate.task_id, r.fingerprint) == (task_id, machine)
                ]
                found = store.records(task_id, machine)
                assert {r.candidate.id for r in found} == {r.candidate.id for r in mine}
                assert len(found) == len({r.candidate.id for r in found})
                assert all(store.has_record(r.candidate.id, task_id, machine) for r in mine)
                assert store.best(task_id, machine) == fastest(found)
        failed = sum(not r.outcome.ok for r in newest.values())
        assert store.counts() == Counts(0, len(newest), failed)


def test_only_verified_newest_measurements_are_best(store: RecordStore) -> None:
    assert store.best("t", "here") is None
    store.add_records([record(0, None), record(1, 1e-6, verified=False), record(2, 3e-3)])
    store.add_record(record(3, 1e-3, batch=0, created=1))
    best = store.best("t", "here")
    assert best is not None and best.candidate.decisions == ((3,),)
    store.add_record(record(3, 9e-3, batch=1, created=2))  # measured again: not that fast
    best = store.best("t", "here")
    assert best is not None and best.candidate.decisions == ((2,),)
    assert len(store.records("t", "here")) == 4
    assert store.counts() == Counts(tasks=0, records=5, failed=1)


def test_tasks_baselines_batches_checkpoints_jobs(store: RecordStore) -> None:
    store.add_tasks([task("a"), task("b")])
    assert store.tasks() == [task("a"), task("b")]
    store.put_baseline(Baseline("a", float("inf"), "here"))
    store.put_baseline(Baseline("a", 0.5, "here"))
    assert store.baseline("a", "here") == Baseline("a", 0.5, "here")
    assert store.baseline("a", "there") is None
    assert store.last_batch() is None
    store.put_batch(1, b"one")
    store.put_batch(2, b"two")
    assert store.last_batch() == (2, b"two") and store.batch(1) == b"one" and store.batch(3) is None
    store.put_checkpoint(1, b"x")
    store.put_checkpoint(0, b"y")
    assert store.checkpoints() == [(0, b"y"), (1, b"x")]
    store.put_job("j1", "queued", b"1")
    store.put_job("j2", "queued", b"2")
    store.put_job("j1", "done", b"3")
    assert [j.id for j in store.jobs(["done", "queued"])] == ["j1", "j2"]
    assert [j.id for j in store.jobs(["queued"])] == ["j2"]
    found = store.job("j1")
    assert found is not None and (found.state, found.payload) == ("done", b"3")


def test_a_transaction_is_all_or_nothing(store: RecordStore) -> None:
    broken = record(2)
    object.__setattr__(broken, "module_hash", object())
    with pytest.raises((TypeError, sqlite3.Error)):
        store.add_records([record(1), broken])
    assert store.all_records() == []


def test_data_sets_travel(store: RecordStore, tmp_path: Path) -> None:
    store.add_tasks([task("t")])
    store.add_records([record(0), record(1, None), record(0, 2e-3, batch=1, created=1)])
    with_features = replace(record(1, None), features=b"12")
    store.add_records([with_features])
    assert with_features in store.all_records(), "they are left out of data sets only"
    store.add_records([record(1, None)])
    assert store.export_dataset(tmp_path / "set.tlmd") == Counts(1, 3, 1)
    with RecordStore(tmp_path / "other" / "records.db") as other:
        for _ in range(2):
            assert other.import_dataset(tmp_path / "set.tlmd") == Counts(1, 3, 1)
        assert other.all_records() == store.all_records() and other.tasks() == store.tasks()
        (tmp_path / "bad").write_bytes(b"\x01\x02 nothing")
        for name in ("bad", "missing"):
            with pytest.raises(BadInput, match=name):
                other.import_dataset(tmp_path / name)
    with pytest.raises(Failed, match="cannot write"):
        store.export_dataset(tmp_path / "no" / "such" / "folder")


def test_one_writer_and_readers_beside_it(store: RecordStore, tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    store.add_record(record())
    with pytest.raises(Failed, match=f"in use by pid {os.getpid()}"):
        RecordStore(path)
    with RecordStore(path, read_only=True) as reader:
        assert len(reader.all_records()) == 1
        with pytest.raises(Failed):
            reader.add_record(record(1))
    store.close()
    store.close()
    RecordStore(path).close()
    with pytest.raises(BadInput, match="does not exist"):
        RecordStore(tmp_path / "none.db", read_only=True)


def test_damaged_and_newer_files_are_named(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(BadInput, match=r"garbage\.db is damaged"):
        RecordStore(garbage)
    newer = tmp_path / "newer.db"
    RecordStore(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("UPDATE meta SET value = 99")
    with pytest.raises(BadInput, match=r"newer tlmd.*upgrade"):
        RecordStore(newer)
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE theirs (x)")
    with pytest.raises(BadInput, match="not a record store"):
        RecordStore(foreign)
    torn = tmp_path / "torn.db"
    with RecordStore(torn) as store:
        store.add_records([record(i) for i in range(500)])
    data = bytearray(torn.read_bytes())
    data[len(data) // 4 : len(data) // 2] = b"\xff" * (len(data) // 2 - len(data) // 4)
    torn.write_bytes(data)
    with pytest.raises(BadInput, match=r"torn\.db is damaged"):
        RecordStore(torn)
    assert RecordStore(tmp_path / "fresh.db").counts() == Counts(0, 0, 0), "locks were given back"


def test_a_full_disk_is_one_line_and_loses_nothing(store: RecordStore) -> None:
    store.add_record(record(0))
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(DiskFull, match="no space left") as caught:
        store.add_records([record(i) for i in range(1, 2000)])
    assert "\n" not in str(caught.value)
    assert store.all_records() == [record(0)]
    store._db.execute("PRAGMA max_page_count = 1000000")
    store.add_record(record(1))
    assert len(store.all_records()) == 2


def test_several_threads(store: RecordStore) -> None:
    def work(start: int) -> None:
        for index in range(start, start + 25):
            store.add_record(record(index))
            store.best("t", "here")

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.counts().records == 100


WRITER = """
import sys
from pathlib import Path
import tests.records.test_store as t
with t.RecordStore(Path(sys.argv[1])) as store:
    index = 0
    while True:
        store.add_records([t.record(index), t.record(index + 1)])
        index += 2
        print(index, flush=True)
"""


def writing(path: Path) -> subprocess.Popen[bytes]:
    """A process that appends two records at a time, and then prints how many there are."""
    search = str(ROOT)
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": search},
    )


@pytest.mark.parametrize("lines", [1, 40])
def test_every_acknowledged_record_survives_a_killed_writer(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "records.db"
    with writing(path) as writer:
        assert writer.stdout is not None
        for _ in range(lines):
            acknowledged = int(writer.stdout.readline())
        with pytest.raises(Failed, match=f"in use by pid {writer.pid}"):
            RecordStore(path)
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split()
        acknowledged = int(rest[-1]) if rest else acknowledged
    with RecordStore(path) as store:
        indices = {r.candidate.decisions[0][0] for r in store.all_records()}
        assert indices >= set(range(acknowledged))
        assert len(indices) % 2 == 0, "a transaction is never half there"
