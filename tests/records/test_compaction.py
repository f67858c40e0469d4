"""Compaction: what goes, and that the best program of a task never does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records.test_store import record, store, task
from tlmd import cli
from tlmd.data.job_request import JobRequest
from tlmd.data.types import JobState
from tlmd.records import job_specs
from tlmd.records.compaction import StoredRow, superfluous, tasks_of_unfinished_jobs
from tlmd.records.store import RecordStore
from tlmd.records.task_file import save_tasks

__all__ = ["store"]  # a fixture

rows = st.lists(
    st.builds(
        lambda candidate, created, compared, seconds: (candidate, created, compared, seconds),
        st.sampled_from([b"a", b"b", b"c", b"d", b"e"]),
        st.integers(0, 5).map(float),
        st.booleans(),
        st.none() | st.integers(1, 5).map(float),
    ),
    max_size=20,
).map(lambda found: [StoredRow(i, *values) for i, values in enumerate(found)])


@given(rows, st.integers(1, 4))
def test_of_each_candidate_at_most_the_newest_stays(rows: list[StoredRow], keep: int) -> None:
    gone = set(superfluous(rows, keep))
    left = [one for one in rows if one.row not in gone]
    assert len({one.candidate for one in left}) == len(left)
    for one in left:
        same = [other for other in rows if other.candidate == one.candidate]
        assert (one.created, one.row) == max((other.created, other.row) for other in same)
    ordered = sorted(rows, key=lambda one: (one.created, one.row))
    newest = {one.candidate: one for one in ordered}.values()
    timed = [one for one in newest if one.seconds is not None]
    assert all(one in left for one in timed if one.compared)
    fastest = sorted(one.seconds for one in timed if one.seconds is not None)[:keep]
    assert sorted(one.seconds for one in left if one.seconds is not None)[:keep] == fastest
    assert superfluous(left, keep) == []


def test_the_best_stays_and_so_do_other_tasks(store: RecordStore) -> None:
    made = [record(i, 1 + (i * 7) % 50, created=i) for i in range(50)]
    store.add_records(made)
    store.add_records(record(i, 0.5, name="other") for i in range(5))
    best = store.best("t", "here")
    assert best is not None
    assert store.compact(3, [("other", "here")]) == 44
    left = store.records("t", "here")
    assert [r.candidate for r in left[-3:]] == [r.candidate for r in made[-3:]]
    assert best in left and store.best("t", "here") == best
    assert (store.counts().records, store.compact(3, [("other", "here")])) == (11, 0)
    store.check_records()


def test_the_command_gives_space_back_and_leaves_unfinished_jobs_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, file = tmp_path / "records.sqlite", tmp_path / "jobs" / "j.tasks"
    file.parent.mkdir()
    save_tasks(file, [task("open")])
    with RecordStore(path) as written:
        written.add_records(record(i, 1 + i / 1e3) for i in range(4000))
        written.add_records(record(i, 1 + i / 1e3, name="open") for i in range(20))
        job = job_specs.JobSpec("j", JobRequest("m", trials=16), tasks=str(file))
        job_specs.save(written, job, JobState.RUNNING)
        assert tasks_of_unfinished_jobs(written, tmp_path) == {("open", "here")}
        command = ["records", "compact", "--keep", "5", "--state-dir", str(tmp_path)]
        assert cli.main(command) == 1 and "is in use by pid" in capsys.readouterr().err
    size = path.stat().st_size
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert text.startswith("removed 3990 records, 30 are left; "), text
    assert path.stat().st_size < size / 2
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"removed": 0, "records": 30, "bytes": path.stat().st_size}
    assert cli.main([*command[:-1], str(tmp_path / "none")]) == 2
    assert "holds no records" in capsys.readouterr().err
