"""The times of stages: each has what is not in the stages inside of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tlmd.processes import stage_times


def test_a_stage_does_not_count_the_stages_inside_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stages"
    monkeypatch.setenv(stage_times.STAGES, str(file))
    with stage_times.stage("outer"):
        with stage_times.stage("inner"):
            time.sleep(0.2)
        with pytest.raises(ValueError), stage_times.stage("fails"):
            raise ValueError
    inner, fails, outer = map(json.loads, file.read_text().splitlines())
    assert [line["stage"] for line in (inner, fails, outer)] == ["inner", "fails", "outer"]
    assert inner["wall_s"] >= 0.2 > outer["wall_s"] and outer["began"] <= inner["began"]


def test_nothing_is_written_where_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(stage_times.STAGES, raising=False)
    monkeypatch.chdir(tmp_path)
    with stage_times.stage("outer"):
        stage_times.note("inner", 0.0, 1.0, 1.0)
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stage_times.STAGES, str(tmp_path / "missing" / "stages"))
    with stage_times.stage("outer"):
        pass
