"""`tlmd compile`: a model that works, without a daemon and without measuring."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tlmd
from tests.support import endtoend, models_in_parts
from tests.system.test_tune import KEYS, TASK_KEYS

pytestmark = pytest.mark.slow


def test_a_model_is_compiled_without_measuring(tmp_path: Path) -> None:
    out, state = tmp_path / "out", tmp_path / "state"
    flags = ("--out", out, "--state-dir", state, "--json")
    done = endtoend.run("compile", endtoend.MODEL, *flags)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary.keys() >= KEYS and json.loads((out / "summary.json").read_text()) == summary
    assert summary["programs"].keys() <= {"known", "predicted"}  # known ones ship for some CPUs
    assert summary["measured"] == 0 and sum(summary["programs"].values()) == len(summary["tasks"])
    assert summary["e2e"]["functions_with_record"] == summary["e2e"]["functions"] > 2
    assert 0 <= summary["error"] < 1e-4
    for task in summary["tasks"]:
        assert set(task) == TASK_KEYS and task["verified"] and task["best_us"] is None
    assert not (state / "records.sqlite").exists()
    ran = subprocess.run(
        [sys.executable, out / "run.py"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_what_is_said_and_from_python(tmp_path: Path) -> None:
    done = endtoend.run("compile", endtoend.MODEL, "--state-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nothing was measured" in done.stdout and "its outputs are those of" in done.stdout
    result = tlmd.tune(endtoend.MODEL, effort="instant", state_dir=tmp_path, out=tmp_path / "out")
    assert result.summary["measured"] == 0 and (tmp_path / "out" / "model.so").exists()


def test_a_model_that_tvm_compiles_in_parts(tmp_path: Path) -> None:
    module, (x,) = models_in_parts.fourier()
    tlmd.tune(f"{models_in_parts.__name__}:fourier", trials=0, state_dir=tmp_path, out=tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(tlmd.load(tmp_path)(x), module(x), rtol=1e-4, atol=1e-4)


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    done = endtoend.run("compile", "resnet81", "--state-dir", tmp_path)
    assert done.returncode == 2 and "unknown model 'resnet81'" in done.stderr.splitlines()[-1]
    done = endtoend.run("compile", endtoend.MODEL, "--trials", "3")
    assert done.returncode == 2
