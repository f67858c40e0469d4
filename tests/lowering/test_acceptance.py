"""`tlmd check`: what works is told in detail, what does not in one line, and nothing is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tlmd
from tests.support import endtoend, processes
from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec
from tlmd.lowering import acceptance, comparison
from tlmd.space.hardware import target as targets

HERE = "tests.support.difficult_models"


def refused(factory: str, tmp_path: Path, **settings: Any) -> str:
    with pytest.raises(BadInput) as caught:
        tlmd.check(f"{HERE}:{factory}", state_dir=tmp_path, **settings)
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and len(message) < 400
    return message


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("raises", "failed (RuntimeError: no weights)"),
        ("exits", "failed (SystemExit: 3)"),
        ("returns_a_number", "it must return (module, example inputs)"),
    ],
)
def test_a_model_that_cannot_work_is_one_line(factory: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        acceptance.accept(ModelSpec(f"{HERE}:{factory}"), targets.resolve("native", 1))
    assert words in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.slow
def test_a_crash_is_one_line(tmp_path: Path) -> None:
    assert "ended the process (SIGSEGV); see " in refused("crashes", tmp_path)


@pytest.mark.slow
def test_an_operator_that_crashes_the_compiler_stays_in_pytorch(tmp_path: Path) -> None:
    found = tlmd.check(f"{HERE}:crashes_the_importer", state_dir=tmp_path)
    (note,) = found["notes"]
    assert "left to PyTorch: aten.sin" in note
    assert found["error"] < 1e-5 and found["tasks"] > 0


@pytest.mark.slow
def test_limits_of_time_and_memory(tmp_path: Path) -> None:
    seconds = {"check.stage_seconds": 6}
    assert "takes more than 6 s (check.stage_seconds)" in refused("hangs", tmp_path, **seconds)
    share = {"check.memory_share": 0.05}
    assert "GB of memory" in refused("needs_all_memory", tmp_path, **share)


@pytest.mark.slow
def test_a_model_that_forks_and_prints_works_and_leaves_nothing(tmp_path: Path) -> None:
    done = endtoend.run("check", f"{HERE}:forks_and_prints", "--state-dir", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["works"] and found["error"] < 1e-5
    assert found["inputs"] == [["ids", [2, 5], "int64"], ["mask", [2, 5], "bool"]]
    assert found["outputs"] == ["scores", "extra.hidden.0", "extra.ids.0", "extra.ids.1"]
    processes.wait_for(lambda: not processes.of(tmp_path), 10, "end of all processes")


def test_a_name_that_is_not_there(run: Callable[..., str]) -> None:
    assert "did you mean 'resnet18'" in run("check", "resnet81")
    assert "no such file" in run("check", "nowhere.onnx")


def test_outputs_are_compared_by_their_kind() -> None:
    a = np.array([1.0, -4.0, np.nan, np.inf], np.float32)
    assert comparison.output_error(a, a)[0] == 0
    assert comparison.output_error(a + np.float32(4e-4), a)[0] == pytest.approx(1e-4, rel=0.1)
    assert comparison.output_error(np.zeros(4, np.float32), a)[0] == np.inf
    whole = np.array([3, 4], np.int64)
    assert comparison.output_error(whole + 1, whole)[0] == 1
    rounded = np.array([3, 4], np.int8)
    assert comparison.output_error(rounded + np.int8(1), rounded)[0] == 0
    with pytest.raises(BadInput, match=r"shape \(2,\) instead of \(1, 2\)"):
        comparison.check_output("m", "y", whole, whole[None])
