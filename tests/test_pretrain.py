"""From records to the checkpoint that ships: encode, train without TVM, put together."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import modules
from tests.learning import ADD, GEMM, measured
from tlmd.learn import encode, pretrain
from tlmd.model import checkpoint
from tlmd.model.demonstration import count_demonstrations
from tlmd.model.demonstration_file import read_demonstrations
from tlmd.model.ranking import spearman
from tlmd.records.dataset import write_dataset

_NOT_NEEDED = ("tvm", "ray", "xgboost", "pydantic", "fastapi", "onnx", "scipy.stats")


@pytest.mark.slow
def test_the_three_commands_make_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [GEMM, ADD, modules.softmax()]
    records = [r for task in tasks for r in measured(task, 12)]
    failed = replace(records[0].candidate, sketch=50)
    path, encoded = tmp_path / "records.msgpack.gz", tmp_path / "encoded.msgpack.gz"
    write_dataset(path, tasks, [*records, replace(records[0], candidate=failed)])
    assert encode.main(["--records", str(path), "--out", str(encoded)]) == 0
    found = read_demonstrations(encoded)
    assert [shown.task_id for shown in found] == sorted(task.id for task in tasks)
    assert count_demonstrations(found) == len(records)
    assert all(max(s.share for s in shown.demonstrations) == 1.0 for shown in found)

    weights = tmp_path / "model.safetensors"
    code = (
        "import sys; from tlmd.model import pretrain; pretrain.main(sys.argv[1:]); "
        f"loaded = set({_NOT_NEEDED!r}) & set(sys.modules); assert not loaded, loaded"
    )
    command = [sys.executable, "-c", code, "--demonstrations", str(encoded), "--out", str(weights)]
    done = subprocess.run([*command, "--minutes", "0.02"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 tasks, 1 kept out" in done.stdout and "correlation" in done.stdout
    again = subprocess.run(
        [*command, "--minutes", "0.01", "--start", str(weights)], capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr

    out = tmp_path / "tlm"
    command = ["--records", str(path), "--model", str(weights), "--out", str(out)]
    assert pretrain.main(command) == 0
    made = checkpoint.load(out)
    assert made.cost_model.trained and made.notes["measured"] == len(records) + 1
    assert "unseen tasks" in capsys.readouterr().out


def test_equal_values_share_their_ranks() -> None:
    values = np.array([1.0, 2.0, 2.0, 5.0])
    assert spearman(values, values * 3) == pytest.approx(1.0)
    assert spearman(values, np.array([1.0, 3.0, 2.0, 9.0])) == pytest.approx(0.9487, abs=1e-4)
    assert spearman(values, np.ones(4)) == 0.0
