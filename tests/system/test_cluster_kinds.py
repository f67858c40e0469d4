"""A Ray cluster with two kinds of slots: nodes come and go, the kinds never mix (`two_kinds`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import endtoend
from tests.system.two_kinds import KINDS
from tlmd.records import job_specs
from tlmd.records.store import RecordStore
from tlmd.records.task_file import load_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

TRIALS, TRIALS_FULL = 16, 80


def exported_times(directory: Path) -> dict[str, list[float]]:
    """The seconds of all programs of a MetaSchedule database, by the CPU that they are for."""
    times: dict[str, list[float]] = {}
    lines = (directory / "database_tuning_record.json").read_text().splitlines()
    for _workload, (_trace, seconds, target, _arguments) in map(json.loads, lines):
        times.setdefault(target["mcpu"], []).append(seconds[0])
    return {cpu: sorted(found) for cpu, found in times.items()}


def best_times(state: Path, job: str) -> list[float]:
    """The seconds of the best program of each task of a job."""
    with RecordStore(state / "records.sqlite", read_only=True) as store:
        found = job_specs.find(store, job)
        assert found is not None
        tasks = load_tasks(Path(found[0].tasks))
        best = [store.best(*task.key) for task in tasks]
    return sorted(record.outcome.seconds for record in best if record is not None)


def test_nodes_come_and_go_and_two_kinds_of_slots_never_mix(
    small_tlm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    if not full:
        pytest.skip("it takes two minutes: with --full, once a week")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    state, trials = tmp_path / "state", TRIALS_FULL if full else TRIALS
    command = [
        sys.executable,
        "-m",
        "tests.system.two_kinds",
        str(state),
        endtoend.LONG,
        str(trials),
    ]
    command += ["--full"] * full
    done = subprocess.run(
        command, cwd=endtoend.ROOT, capture_output=True, text=True, check=False, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    print(result)
    assert result["states"] == ["done", "done"] and result["error"] == "", result
    assert result["nodes"] == (8 if full else 5)
    assert result["left"] == [result["victim"]] and result["in_flight_when_killed"] > 0
    assert result["errors"] == [], "a slot was given a task of another kind"
    narrow, wide = (result["kinds"][kind] for kind in KINDS)
    assert narrow["tasks"] == wide["tasks"]
    assert narrow["records"] + wide["records"] == result["records"], "no record is of a third kind"
    for kind in (narrow, wide):
        assert kind["twice"] == 0 and kind["real"] > 0
        assert max(kind["trials"]) == trials and sum(kind["trials"]) == kind["records"]
    _check_exports(state, result["jobs"], tmp_path, full)


def _check_exports(state: Path, jobs: dict[str, str], tmp_path: Path, full: bool) -> None:
    out = tmp_path / "database"
    done = endtoend.run("records", "export", out, "--state-dir", state)
    assert done.returncode == 0, done.stderr
    targets: dict[str, Any] = {kind: json.loads(spec) for kind, spec in KINDS.items()}
    exported = exported_times(out)
    assert exported.keys() == {target["mcpu"] for target in targets.values()}
    for kind, job in jobs.items():
        times = exported[targets[kind]["mcpu"]]
        assert times == pytest.approx(best_times(state, job))
        if full:
            own = tmp_path / kind
            done = endtoend.run("export", job, "--out", own, "--state-dir", state)
            assert done.returncode == 0, done.stderr
            summary = json.loads((own / "summary.json").read_text())
            assert json.loads(summary["target"]).items() >= targets[kind].items()
            assert exported_times(own).keys() == {targets[kind]["mcpu"]}
