"""The stages of `benchmarks.time_to_model`: one row each, over all processes."""

from __future__ import annotations

from benchmarks.whole_models.time_to_model import by_stage


def line(stage: str, began: float, wall_s: float, cpu_s: float) -> dict[str, object]:
    return {"stage": stage, "pid": 1, "began": began, "wall_s": wall_s, "cpu_s": cpu_s}


def test_a_stage_of_several_processes_is_one_row() -> None:
    rows = by_stage([line("b", 103, 2, 1), line("a", 101, 1, 1), line("b", 102, 1.5, 0.5)], 100.0)
    first = {"stage": "a", "from": 1.0, "to": 2.0, "wall s": 1, "CPU s": 1}
    second = {"stage": "b", "from": 2.0, "to": 5.0, "wall s": 3.5, "CPU s": 1.5}
    assert rows == [first, second]
