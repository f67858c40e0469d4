"""Programs without measuring: the best record first, else the cost model's choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support import modules
from tests.support.measured_tasks import measured
from tlmd.data.types import Record, Task
from tlmd.export.program_source import ProgramSource
from tlmd.export.result import Result
from tlmd.records.store import RecordStore
from tlmd.space.cache import SpaceCache

TASK = modules.gemm()


def keep(folder: Path, seconds: float, *others: Record, baseline_s: float = 1.0) -> Record:
    """Write a record of the task, and `others`, to the records of a state directory."""
    state = measured(TASK, seconds, baseline_s)
    (record,), baseline = state.records, state.baseline
    assert baseline is not None
    record = replace(record, fingerprint=TASK.target.fingerprint)
    folder.mkdir(exist_ok=True)
    with RecordStore(folder / "records.sqlite") as store:
        store.add_task(TASK)
        store.put_baseline(baseline)
        store.add_records([record, *(replace(r, fingerprint=record.fingerprint) for r in others)])
    return record


def find(folder: Path, task: Task = TASK) -> Result:
    return ProgramSource(folder).find("model", [task], task.target, SpaceCache())


def test_a_record_is_taken_before_a_choice(tmp_path: Path) -> None:
    record = keep(tmp_path, 1e-4)
    (row,) = find(tmp_path).rows()
    assert row.candidate == record.candidate and row.predicted is None and row.is_measured


def test_without_a_record_the_cost_model_chooses(tmp_path: Path) -> None:
    (row,) = find(tmp_path / "never used").rows()
    assert row.record is None and row.candidate is not None and row.candidate == row.predicted
    (again,) = find(tmp_path / "never used").rows()
    assert again.candidate == row.candidate
    assert not row.is_measured


def test_a_record_of_another_machine_is_not_taken(tmp_path: Path) -> None:
    keep(tmp_path, 1e-4)
    other = replace(TASK, target=replace(TASK.target, fingerprint="another one"))
    (row,) = find(tmp_path, other).rows()
    assert row.record is None and row.predicted is not None


def test_where_the_default_is_faster_than_the_record_it_stays(tmp_path: Path) -> None:
    keep(tmp_path, 1e-4, baseline_s=1e-6)
    (row,) = find(tmp_path).rows()
    assert row.candidate is None and row.is_measured


def test_a_record_that_tvm_refuses_gives_way_to_the_next_best(tmp_path: Path) -> None:
    state = measured(TASK, 1e-4)
    (good,) = state.records
    decisions = (good.candidate.decisions[0], *[(7, 7, 7, 7)] * 9)
    faster = replace(good.outcome, samples=(1e-5,), low=1e-5, high=1e-5)
    bad = replace(good, candidate=replace(good.candidate, decisions=decisions), outcome=faster)
    gone = replace(good, candidate=replace(good.candidate, sketch=99), outcome=faster)
    keep(tmp_path, 1e-4, bad, gone)
    result = find(tmp_path)
    (row,) = result.rows()
    assert row.candidate == good.candidate and result.refused == 2
