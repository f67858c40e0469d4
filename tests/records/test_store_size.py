"""The record store however large it is: what a call reads, and what is checked when."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import tlmd.records.store
from tests.records.test_store import record, store, writing
from tlmd import cli
from tlmd.daemon.store_check import StoreCheck
from tlmd.data.errors import BadInput
from tlmd.records import database
from tlmd.records.store import Counts, RecordStore

__all__ = ["store"]  # a fixture


def steps(store: RecordStore, call: object) -> int:
    """How many hundred instructions of SQLite a call takes."""
    count = 0

    def one() -> int:
        nonlocal count
        count += 1
        return 0

    store._db.set_progress_handler(one, 100)
    assert callable(call)
    call()
    store._db.set_progress_handler(None, 100)
    return count


def test_counts_and_the_best_take_the_same_time_however_many_records_there_are(
    store: RecordStore,
) -> None:
    taken = []
    for count in (20, 2000):
        store.add_records([record(i, None if i % 4 == 0 else 1 / (i + 1)) for i in range(count)])
        asked = (store.counts, lambda: store.best("t", "here"))
        taken.append([steps(store, call) for call in asked])
        best = store.best("t", "here")
        assert best is not None and best.candidate.decisions == ((count - 1,),)
    assert taken[0] == taken[1]
    assert store.counts() == Counts(0, 2000, 500)


def test_only_the_newest_plans_of_batches_are_kept(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tlmd.records.store, "_KEPT_BATCHES", 10)
    for number in range(12):
        store.put_batch(number, b"plan")
    assert store.batch(1) is None and store.batch(2) == b"plan"
    assert store.last_batch() == (11, b"plan")


def flip_middle(path: Path) -> None:
    """Damage pages in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 4 : len(data) // 2] = b"\xff" * (len(data) // 2 - len(data) // 4)
    path.write_bytes(data)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A store that counts as too large to be checked whole when it is opened."""
    path = tmp_path / "records.db"
    with RecordStore(path) as store:
        store.add_records([record(i) for i in range(2000)])
    monkeypatch.setattr(database, "CHECKED_PAGES", 4)
    monkeypatch.setattr(database, "BACKGROUND_PAGES", 8)
    return path


def test_a_large_store_is_not_read_whole_when_it_is_opened(large: Path) -> None:
    with RecordStore(large) as store:
        assert not store.needs_check, "its writer has closed it"
        store.check_whole()


def test_one_that_is_not_very_large_is_checked_beside_the_work(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BACKGROUND_PAGES", 10_000)
    with RecordStore(large) as store:
        assert store.needs_check


def test_after_an_unclean_end_a_large_store_has_to_be_checked(large: Path) -> None:
    with writing(large) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
    with RecordStore(large) as store:
        assert store.needs_check
        store.check_whole()
    with RecordStore(large) as store:
        assert not store.needs_check


def test_damage_of_a_large_store_is_found_and_said(large: Path) -> None:
    whole = large.read_bytes()
    large.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="damaged"):
        RecordStore(large)
    large.write_bytes(whole)
    flip_middle(large)
    with RecordStore(large, read_only=True) as store:
        with pytest.raises(BadInput, match="damaged"):
            store.check_whole()
        with pytest.raises(BadInput, match="damaged"):
            store.all_records()


def test_a_daemon_says_what_the_check_in_the_background_finds(large: Path) -> None:
    with RecordStore(large) as store:
        store.needs_check = True
        check = StoreCheck(store)
        check._thread.join()
        check.raise_damage()
        flip_middle(large)
        check = StoreCheck(store)
        check._thread.join()
        with pytest.raises(BadInput, match="damaged"):
            check.raise_damage()


def test_records_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "records.sqlite"
    arguments = ["records", "check", "--state-dir", str(tmp_path)]
    with RecordStore(path) as store:
        store.add_records([record(i) for i in range(10)])
        assert cli.main(arguments) == 0
        assert "10 records of 0 tasks, none damaged" in capsys.readouterr().out
        store._db.execute("UPDATE records SET payload = x'00' WHERE row = 3")
    assert cli.main(arguments) == 2
    assert "is damaged" in capsys.readouterr().err
