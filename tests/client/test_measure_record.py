"""`tlmd measure` and `tlmd records list`: find a candidate, and see why it failed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.support import modules
from tlmd.cli import main
from tlmd.client.commands.measure_record import measure_record
from tlmd.client.commands.record_list import newest_records, text
from tlmd.data.config import Config
from tlmd.data.errors import BadInput
from tlmd.data.types import Candidate, Outcome, Record, Status, Task
from tlmd.records.store import RecordStore
from tlmd.space.hardware.target import resolve
from tlmd.space.space import TaskSpace

TASK = replace(modules.gemm(), target=resolve("native", 1))


def record(task: Task, candidate: Candidate, outcome: Outcome, batch: int) -> Record:
    return Record(candidate, outcome, batch=batch, fingerprint=task.target.fingerprint)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """A program that failed when it was measured, one that TVM refuses, one of another machine."""
    good = TaskSpace(TASK).random(Random(1))
    refused = replace(good, decisions=((7, 7, 7, 7), *good.decisions[1:]))
    elsewhere = record(TASK, replace(good, sketch=9), Outcome(Status.OK, (1.0,)), 2)
    return [
        record(TASK, good, Outcome(Status.CRASH, detail="SIGSEGV (11) while running"), 0),
        record(TASK, refused, Outcome(Status.INVALID, detail="refused"), 1),
        replace(elsewhere, fingerprint="elsewhere"),
    ]


@pytest.fixture
def state(tmp_path: Path, records: list[Record]) -> Path:
    with RecordStore(tmp_path / "records.sqlite") as store:
        store.add_task(TASK)
        store.add_records(records)
    return tmp_path


def test_records_are_listed_newest_first_with_their_reasons(
    state: Path, records: list[Record]
) -> None:
    rows = newest_records(state, 10, failed=False, task="")
    assert [row["id"] for row in rows] == [r.candidate.id for r in reversed(records)]
    failed = newest_records(state, 10, failed=True, task=TASK.name)
    assert [row["status"] for row in failed] == ["invalid", "crash"]
    shown = text(failed)
    assert "SIGSEGV (11) while running" in shown and records[0].candidate.id[:10] in shown
    assert newest_records(state, 1, failed=True, task="")[0]["status"] == "invalid"
    assert newest_records(state, 10, failed=False, task="another") == []
    assert "no such records" in text([])


@pytest.mark.slow
def test_a_failed_candidate_is_measured_again_alone(state: Path, records: list[Record]) -> None:
    candidate = records[0].candidate
    measured = measure_record(state, candidate.id[:12], Config())
    assert measured.record == records[0]
    assert measured.outcome.ok and measured.outcome.verified
    assert len(measured.decisions) == len(candidate.decisions)
    document = json.loads(json.dumps(measured.document()))
    assert document["recorded"]["status"] == "crash" and document["now"]["status"] == "ok"
    shown = measured.text(verbose=False)
    assert "sch.split" in shown and "recorded  crash: SIGSEGV" in shown and "verified" in shown
    assert "T.sblock" not in shown and "T.sblock" in measured.text(verbose=True)
    with RecordStore(state / "records.sqlite", read_only=True) as store:
        assert store.counts().records == len(records), "nothing is added to the store"


def test_a_refused_candidate_says_why(state: Path, records: list[Record]) -> None:
    measured = measure_record(state, records[1].candidate.id, Config())
    assert measured.outcome.status is Status.INVALID and measured.outcome.detail
    assert measured.program == "" and "now       invalid:" in measured.text(verbose=True)


def test_an_id_that_does_not_name_one_record_here(state: Path, records: list[Record]) -> None:
    with pytest.raises(BadInput, match="no record begins with 'zz'"):
        measure_record(state, "zz", Config())
    with pytest.raises(BadInput, match="give more digits"):
        measure_record(state, "", Config())
    with pytest.raises(BadInput, match="another kind of machine"):
        measure_record(state, records[2].candidate.id, Config())


def test_the_commands(
    state: Path, records: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--state-dir", str(state), "--json"]
    assert main(["records", "list", "--failed", *flags]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert main(["measure", records[1].candidate.id, *flags]) == 1
    assert json.loads(capsys.readouterr().out)["now"]["status"] == "invalid"
    assert main(["measure", "zz", *flags]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["measure", "zz", "--state-dir", str(state / "empty")]) == 2
    assert "holds no records" in capsys.readouterr().err


def test_verbose_shows_where_an_error_comes_from_and_keeps_the_output_clean(
    state: Path,
    records: list[Record],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TLMD_VERBOSE", "")  # `main` sets it; pytest puts it back
    flags = ["--state-dir", str(state), "--json", "--verbose"]
    assert main(["measure", "zz", *flags]) == 2
    shown = capfd.readouterr().err
    assert "Traceback" in shown and "tlmd: no record begins with 'zz'" in shown
    assert main(["measure", records[1].candidate.id, *flags]) == 1
    assert json.loads(capfd.readouterr().out)["now"]["status"] == "invalid"
