"""A state directory of the last release, after an upgrade that lowers models to other programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.records.test_upgrade_keeps_records import unpacked
from tests.support import endtoend
from tlmd.data.types import Candidate, Record, Task, Writer
from tlmd.measure.cores.core_plan import plan_cores
from tlmd.records.store import RecordStore
from tlmd.space.hardware.target import resolve

pytestmark = pytest.mark.slow


def older(name: str) -> str:
    """The id that another revision of a task has."""
    return f"t0{name[2:]}" if name else name


def as_an_older_revision(path: Path) -> int:
    """Give the tasks of a store other ids, and this machine's hardware; the number of records."""
    target = resolve("native", len(plan_cores(run=1).run))

    def task(one: Task) -> Task:
        return replace(one, id=older(one.id), group=older(one.group), target=target)

    def record(one: Record) -> Record:
        candidate = one.candidate
        moved = Candidate(older(candidate.task_id), candidate.sketch, candidate.decisions)
        return replace(one, candidate=moved, fingerprint=target.fingerprint)

    with RecordStore(path) as store:
        tasks, records = store.tasks(), store.all_records()
    path.unlink()
    with RecordStore(path) as store:
        store.add_tasks(map(task, tasks))
        store.add_records(map(record, records))
    return len(records)


def test_what_was_tuned_is_tried_first_and_counted(tmp_path: Path, small_tlm: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    path = unpacked(state)
    before = as_an_older_revision(path)
    flags = ("--trials", 2, "--cores", 1, "--state-dir", state)
    done = endtoend.run("tune", endtoend.MODEL, *flags)
    assert done.returncode == 0, done.stderr
    with RecordStore(path, read_only=True) as store:
        new = [r for r in store.all_records() if not r.candidate.task_id.startswith("t0")]
        carried = [r for r in new if r.writer is Writer.CARRIED]
        counts = store.counts()
    verified = {r.candidate.id for r in carried if r.outcome.verified}
    assert counts.records == before + len(new) and counts.carried == len(verified) >= 4
    # For each task that has programs of before, these are the first that were measured.
    for task_id in {r.candidate.task_id for r in carried}:
        first = min((r for r in new if r.candidate.task_id == task_id), key=lambda r: r.created)
        assert first.writer is Writer.CARRIED
