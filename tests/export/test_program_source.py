"""Programs without measuring: the best record, else a known program, else the cost model's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import modules
from tests.support.measured_tasks import measured
from tlmd.corpus import known_programs
from tlmd.corpus.known_programs import KnownProgram, KnownPrograms
from tlmd.data.types import Record, Task
from tlmd.export.program_source import ProgramSource
from tlmd.export.result import Result
from tlmd.records.store import RecordStore
from tlmd.space.cache import SpaceCache
from tlmd.space.space import TaskSpace, module_hash

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


def know(folder: Path, *programs: KnownProgram) -> None:
    """Put known programs into a state directory."""
    folder.mkdir(exist_ok=True)
    known_programs.write(folder / known_programs.FILE, KnownPrograms([programs]))


def known(seconds: float, task: Task = TASK) -> KnownProgram:
    """A program that TVM makes, known for the CPU of `task`."""
    space = TaskSpace(task)
    (record,) = measured(task, seconds).records
    digest = module_hash(space.finish(record.candidate).mod)
    return KnownProgram(task.target.spec, task.name, record.candidate, digest, seconds)


def test_without_a_record_a_known_program_is_taken(tmp_path: Path) -> None:
    program = known(1e-4)
    know(tmp_path, program)
    result = find(tmp_path)
    (row,) = result.rows()
    assert row.candidate == program.candidate and result.known == {TASK.id}
    assert not row.is_measured and result.refused == 0
    record = keep(tmp_path, 1e-4)
    result = find(tmp_path)
    (row,) = result.rows()
    assert row.record == record and not result.known


def test_a_known_program_of_another_cpu_is_not_taken(tmp_path: Path) -> None:
    know(tmp_path, replace(known(1e-4), target=TASK.target.spec.replace("}", ',"keys":["cpu"]}')))
    result = find(tmp_path)
    (row,) = result.rows()
    assert row.predicted is not None and not result.known


def test_known_programs_that_tvm_does_not_make_give_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = known(1e-4)
    changed = replace(good, module_hash="another program")
    gone = replace(good, candidate=replace(good.candidate, sketch=99))
    short = replace(good, candidate=replace(good.candidate, decisions=()))
    know(tmp_path, changed, gone, short, good)
    result = find(tmp_path)
    (row,) = result.rows()
    assert row.candidate == good.candidate and result.refused == 3 and result.known
    assert caplog.text.count("no longer makes") == 3
    know(tmp_path, changed, gone)
    result = find(tmp_path)
    (row,) = result.rows()
    assert row.predicted is not None and result.refused == 2 and not result.known


def test_the_alternative_with_the_best_known_program_is_taken(tmp_path: Path) -> None:
    other = replace(TASK, id="other", group=TASK.id, alternative="winograd2")
    know(tmp_path, known(2e-4), known(1e-4, other))
    source = ProgramSource(tmp_path)
    (row,) = source.find("model", [other, TASK], TASK.target, SpaceCache()).rows()
    assert row.chosen == other and row.candidate == known(1e-4, other).candidate
    source.forget_known()
    result = source.find("model", [TASK, other], TASK.target, SpaceCache())
    assert not result.known and result.rows()[0].chosen == TASK
