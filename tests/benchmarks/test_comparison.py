"""The page of `benchmarks.comparison` and the README say what the rows say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.whole_models import comparison, end_to_end
from benchmarks.whole_models.comparison_page import page, readme_means, readme_table, summary_table
from tlmd.data.model_spec import FP32

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def machines() -> dict[str, list[dict[str, Any]]]:
    return {name: comparison.rows(file) for name, file in comparison.DATA.items()}


def row(model: str, ratio: float, **more: Any) -> dict[str, Any]:
    peers = dict.fromkeys(("eager", "compile", "onnxruntime", "openvino"), 2.0 * ratio)
    interval = {"best / tlmd": ratio, "low": ratio - 0.1, "high": ratio + 0.1}
    settings = {"model": model, "cores": 1, "trials": 16, "precision": FP32}
    rest = {"untuned": 1234.5, "error": 1e-6, "wall_s": 90.0, "commit": "abc1234"}
    return settings | {"tlmd": 2.0} | peers | interval | rest | more


def cells(text: str, model: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {model} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_is_of_the_rows(machines: dict[str, list[dict[str, Any]]]) -> None:
    assert comparison.PAGE.read_text() == page(machines)


def test_the_readme_has_its_tables(machines: dict[str, list[dict[str, Any]]]) -> None:
    text = (ROOT / "README.md").read_text()
    assert readme_means(machines) in text
    assert readme_table(machines) in text


def test_the_readme_shows_six_models_and_the_name_of_the_best_other() -> None:
    rows = [row("resnet18", 2.0, onnxruntime=3.5), row("gpt2", 0.9, eager=None)]
    text = readme_table({"Zen 5": [], "Zen 4": [*rows, row("dcgan", 3.0)]})
    assert cells(text, "ResNet-18")[1:] == [
        *("**2.0**", "3.5", "ONNX Runtime", "2.00 [1.90, 2.10]", "abc1234"),
    ]
    assert cells(text, "GPT-2")[3] == "torch.compile (max-autotune)"
    assert "DCGAN" not in text


def test_the_readme_has_a_mean_of_each_cpu_that_has_most_models() -> None:
    both = [row("resnet18", 2.0), row("gpt2", 1.0)]
    lines = readme_means({"first": both, "second": both[:1], "third": both}).splitlines()
    assert lines[0] == "| first | third |"
    assert lines[2] == "| **1.41** (2 models) | **1.41** (2 models) |"


def test_a_row_with_a_limit_a_failed_peer_and_a_name_of_its_own() -> None:
    rows = [row("resnet18", 1.5, limit=3.0, compile=None), row("package.module:factory", 1.1)]
    text = page({"a CPU": rows}).partition("## a CPU")[2]
    assert cells(text, "ResNet-18")[1:] == [
        *("1234", "**2.0**", "3.0", "-", "3.0", "3.0"),
        *("1.50 [1.40, 1.60]", "150 %", "1e-06", "1.5 min", "abc1234"),
    ]
    assert cells(text, "package.module:factory")[8] == "-"
    assert "2 models: **1.28**" in text


def test_the_summary_leaves_out_a_setting_that_few_models_have() -> None:
    both = [row("resnet18", 2.0), row("gpt2", 1.0), row("resnet18", 3.0, cores=2)]
    head = summary_table({"first": both, "second": both[:2]}).splitlines()[0]
    assert head.endswith("| first, one core | second, one core |")


def test_a_newer_row_takes_the_place_of_the_older_one(tmp_path: Path) -> None:
    data, newer = tmp_path / "data.json", tmp_path / "newer.json"
    old = [row("resnet18", 1.1), row("gpt2", 1.0), row("gpt2", 1.2, budget_s=60.0)]
    data.write_text(json.dumps({"ratio": 1.0, "models": old}))
    newer.write_text(json.dumps({"models": [row("resnet18", 1.21), row("gpt2", 1.3, cores=2)]}))
    comparison.add([newer], data)
    found = json.loads(data.read_text())
    assert [(r["model"], r["cores"], r["best / tlmd"]) for r in found["models"]] == [
        *(("resnet18", 1, 1.21), ("gpt2", 1, 1.0), ("gpt2", 2, 1.3), ("gpt2", 1, 1.2)),
    ]
    assert found["ratio"] == pytest.approx(1.1)


def test_rows_without_their_destination_are_refused(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.comparison",
        "--add",
        str(tmp_path / "rows.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "--add and --to need each other" in done.stderr


def test_the_terminal_shows_rows_with_and_without_metaschedule() -> None:
    stock = {"metaschedule": 6.0, "metaschedule / tlmd": [3.0, 2.5, 3.5], "commit": "abc1234"}
    one, other = map(end_to_end.shown, (row("gpt2", 1.5), row("gpt2", 1.5, trials=64) | stock))
    assert one.keys() == other.keys()
    assert (one["budget"], one["metaschedule / tlmd"]) == (None, None)
    assert other["metaschedule / tlmd"] == "3.00 [2.50, 3.50]"
    assert other["best / tlmd"] == "1.50 [1.40, 1.60]"


@pytest.mark.parametrize(
    ("error", "time", "mean"),
    [
        (1e-6, "6.0", "2 models: **2.45**"),
        (1.2, "6.0 (wrong outputs)", "1 model without wrong outputs: **2.00**"),
    ],
)
def test_the_page_says_where_outputs_of_metaschedule_are_wrong(
    error: float, time: str, mean: str
) -> None:
    rows = [stock_row("gpt2", 3.0, error), stock_row("resnet18", 2.0, 1e-6)]
    text = page({"a CPU": [row("resnet18", 1.5), *rows]}).partition("## a CPU")[2]
    assert time in cells(text, "GPT-2")
    assert f"Geometric mean of MetaSchedule / tlmd, {mean}." in text


def test_no_mean_is_of_wrong_programs_alone() -> None:
    text = page({"a CPU": [row("resnet18", 1.5), stock_row("gpt2", 3.0, 1.2)]})
    assert "Geometric mean of MetaSchedule" not in text


def stock_row(model: str, ratio: float, error: float) -> dict[str, Any]:
    stock = {
        "metaschedule": 6.0,
        "metaschedule / tlmd": [ratio, ratio - 0.5, ratio + 0.5],
        "metaschedule error": error,
        "metaschedule seconds": 60.0,
    }
    return row(model, 1.5, trials=64, **stock)
