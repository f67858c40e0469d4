"""From records to the checkpoint that ships: encode, train without TVM, put together."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support import modules
from tests.support.learning import ADD, GEMM, fresh, measured
from tlmd.data.errors import BadInput
from tlmd.data.types import Outcome, Status
from tlmd.learn import distill, encode_records, make_base
from tlmd.learn.demonstrations import REPLAY
from tlmd.records.dataset import write_dataset
from tlmd.records.task_file import save_tasks
from tlmd.space.features import WIDTH
from tlmd.tlm import checkpoint
from tlmd.tlm.demonstration import count_demonstrations
from tlmd.tlm.demonstration_file import read_demonstrations
from tlmd.tlm.ranking import spearman

_NOT_NEEDED = ("tvm", "ray", "xgboost", "pydantic", "fastapi", "onnx", "scipy.stats")


@pytest.mark.slow
def test_the_three_commands_make_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [GEMM, ADD, modules.softmax()]
    records = [r for task in tasks for r in measured(task, 12)]
    failed = replace(records[0].candidate, sketch=50)
    never_ran = Outcome(Status.TIMEOUT, detail="killed after its time limit while building")
    unknown = replace(records[0], candidate=replace(records[0].candidate, sketch=51))
    unknown = replace(unknown, outcome=never_ran)
    path, encoded = tmp_path / "records.msgpack.gz", tmp_path / "encoded.msgpack.gz"
    write_dataset(path, tasks, [*records, replace(records[0], candidate=failed), unknown])
    assert encode_records.main(["--records", str(path), "--out", str(encoded)]) == 0
    found = read_demonstrations(encoded)
    assert [shown.task_id for shown in found] == sorted(task.id for task in tasks)
    assert count_demonstrations(found) == len(records)
    assert all(max(s.share for s in shown.demonstrations) == 1.0 for shown in found)

    weights = tmp_path / "model.safetensors"
    code = (
        "import sys; from tlmd.tlm import pretrain; pretrain.main(sys.argv[1:]); "
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
    assert make_base.main([*command, "--demonstrations", str(encoded)]) == 0
    assert len(read_demonstrations(out / REPLAY)) == 3
    made = checkpoint.load(out)
    assert made.cost_model.trained and made.cost_model.knows_decisions
    assert made.notes["measured"] == len(records) + 1
    assert "unseen tasks" in capsys.readouterr().out

    more, grown = tmp_path / "more.msgpack.gz", tmp_path / "grown"
    write_dataset(more, tasks[2:], records[24:])
    command = ["--records", str(more), "--start", str(out), "--replay", str(path)]
    assert make_base.main([*command, "--out", str(grown)]) == 0
    assert "before" in capsys.readouterr().out
    kept, rows = checkpoint.load(grown), np.zeros((1, WIDTH), np.float32)
    assert kept.notes["measured"] == len(records) + 1 + len(records[24:])
    assert all(
        torch.equal(weight, made.model.state_dict()[name])
        for name, weight in kept.model.state_dict().items()
    )
    assert kept.cost_model.score(rows) != made.cost_model.score(rows)

    tasks_file, distilled = tmp_path / "tasks", tmp_path / "distilled.msgpack.gz"
    save_tasks(tasks_file, tasks)
    command = ["--tasks", str(tasks_file), "--checkpoint", str(out), "--out", str(distilled)]
    assert distill.main([*command, "--per-task", "16"]) == 0
    for shown in read_demonstrations(distilled):
        assert {s.share for s in shown.demonstrations} >= {1.0}
        assert all(0 <= s.share <= 1 for s in shown.demonstrations)
        assert 4 <= len(shown.demonstrations) <= 16


def test_distilling_asks_for_trees_on_decisions(tmp_path: Path) -> None:
    checkpoint.save(fresh(), tmp_path / "untrained")
    with pytest.raises(BadInput, match="cannot rank decisions"):
        distill.main(["--tasks", "x", "--checkpoint", str(tmp_path / "untrained"), "--out", "y"])


def test_equal_values_share_their_ranks() -> None:
    values = np.array([1.0, 2.0, 2.0, 5.0])
    assert spearman(values, values * 3) == pytest.approx(1.0)
    assert spearman(values, np.array([1.0, 3.0, 2.0, 9.0])) == pytest.approx(0.9487, abs=1e-4)
    assert spearman(values, np.ones(4)) == 0.0
