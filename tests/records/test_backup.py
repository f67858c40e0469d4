"""`tlmd backup` and `tlmd restore`: consistent while a writer runs, elsewhere, never half."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.records.test_store import record, task, writing
from tests.support.fake_checkpoints import accept, blob, load
from tlmd import cli
from tlmd.daemon.job_documents import make_spec
from tlmd.data.errors import BadInput, Failed
from tlmd.data.types import JobState
from tlmd.records import backup, job_specs
from tlmd.records.store import RecordStore
from tlmd.records.task_file import load_tasks, save_tasks
from tlmd.tlm import checkpoint as checkpoints
from tlmd.tlm.checkpoint_registry import Registry

_TASKS = "jobs/m-1.tasks"


def registry(state: Path, base: Path) -> Registry:
    if not base.exists():
        checkpoints.unpack(blob(0), base)
    return Registry(state / "checkpoints", base)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory with records, a job and two checkpoints."""
    monkeypatch.setattr(checkpoints, "load", load)
    state = tmp_path / "here"
    for version in (1, 2):
        registry(state, tmp_path / "base").publish(blob(version), version, accept)
    with RecordStore(state / "records.sqlite") as store:
        store.add_records([record(i) for i in range(20)])
        save_tasks(state / _TASKS, [task("t")])
        spec = replace(make_spec({"model": "m"}), id="m-1", tasks=str(state / _TASKS))
        job_specs.save(store, spec, JobState.RUNNING)
    (state / "token").write_text("secret")
    return state


def test_a_backup_is_restored_elsewhere(state: Path, tmp_path: Path) -> None:
    file, there = tmp_path / "backup", tmp_path / "there" / "state"
    arguments = [str(file), "--json", "--state-dir"]
    assert cli.main(["backup", *arguments, str(state)]) == 0
    whole = {p.relative_to(state): p.read_bytes() for p in state.rglob("v0*/*")}
    state.rename(tmp_path / "lost")
    assert cli.main(["restore", *arguments, str(there)]) == 0
    with RecordStore(there / "records.sqlite") as store:
        assert [r.candidate.decisions for r in store.all_records()] == [((i,),) for i in range(20)]
        ((spec, job_state),) = job_specs.unfinished(store)
        path = job_specs.tasks_file(spec, there)
        assert job_state is JobState.RUNNING and path == there / _TASKS
        assert load_tasks(path) == [task("t")]
    assert {p.relative_to(there): p.read_bytes() for p in there.rglob("v0*/*")} == whole
    assert registry(there, tmp_path / "base").current == 2
    assert sorted(p.name for p in there.iterdir()) == [
        "checkpoints",
        "jobs",
        "records.sqlite",
        "records.sqlite.lock",
    ]


def test_a_backup_beside_a_writer_is_consistent(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    with writing(path) as writer:
        assert writer.stdout is not None
        for number in range(5):
            acknowledged = int(writer.stdout.readline())
            backup.save(tmp_path, tmp_path / f"b{number}")
            saved = backup.restore(tmp_path / f"b{number}", tmp_path / f"s{number}")
            assert saved.records >= acknowledged and saved.records % 2 == 0
        writer.kill()


def test_the_version_in_force_is_in_a_backup_whatever_is_published_meanwhile(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, turns = Path.read_bytes, iter(range(1))

    def slow(path: Path) -> bytes:
        if path.name == "current.json" and next(turns, None) is not None:
            registry(state, tmp_path / "base").publish(blob(3), 3, accept)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", slow)
    backup.save(state, tmp_path / "backup")
    there = tmp_path / "there"
    backup.restore(tmp_path / "backup", there)
    current = json.loads((there / "checkpoints/current.json").read_text())["current"]
    assert current == 3 and (there / "checkpoints/v000003/manifest.json").exists()


def test_what_is_no_backup_is_refused(state: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    file, there = tmp_path / "backup", tmp_path / "there"
    backup.save(state, file)
    whole = file.read_bytes()
    assert "has records already" in run("restore", file, "--state-dir", state)
    assert "no such file" in run("restore", tmp_path / "none", "--state-dir", there)
    assert "is no backup" in run("restore", state / "records.sqlite", "--state-dir", there)
    assert "nothing was measured" in run("backup", file, "--state-dir", tmp_path / "empty")
    damaged = bytearray(whole)
    middle = slice(len(whole) // 4, len(whole) // 2)
    damaged[middle] = b"\xff" * len(damaged[middle])
    for content in (bytes(damaged), whole[: len(whole) // 2], b"nothing at all", b""):
        file.write_bytes(content)
        assert str(file) in run("restore", file, "--state-dir", there)
        assert not (there / "records.sqlite").exists()
    for name in ("../outside", "checkpoints/../../outside", "jobs/x/../../outside.tasks"):
        file.write_bytes(whole)
        with sqlite3.connect(file) as db:
            db.execute("UPDATE files SET name = ? WHERE name = ?", (name, _TASKS))
        db.close()
        assert "not one of tlmd" in run("restore", file, "--state-dir", there)
    file.write_bytes(whole)
    with sqlite3.connect(file) as db:
        db.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    db.close()
    assert "newer tlmd" in run("restore", file, "--state-dir", there)
    assert list(there.iterdir()) == []
    with pytest.raises(Failed, match="cannot write"):
        backup.save(state, tmp_path / "no" / "folder" / "backup")
    with pytest.raises(BadInput):
        backup.restore(tmp_path, there)
