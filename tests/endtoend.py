"""What the end-to-end tests share: a network of three layers in every form, and the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tlmd.types import Record, Status

ROOT = Path(__file__).parent.parent
MODEL = "tests.endtoend:make"
LONG = "tests.endtoend:make_wide"
SHAPE = (1, 3, 8, 8)


class Net(nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.second = nn.Linear(channels * 64, 16)
        self.third = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x)).flatten(1)
        return torch.as_tensor(self.third(torch.relu(self.second(x))))


def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(SHAPE),)


def make_wide() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Net(32).eval(), (torch.randn(SHAPE),)


def save_pt2(path: Path) -> Path:
    module, example = make()
    torch.export.save(torch.export.export(module, example), path)
    return path


def save_onnx(path: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    shapes = {"w": (8, 3, 3, 3), "a": (512, 16), "b": (16, 5)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(s).astype("float32") * 0.1, n)
        for n, s in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "a"], ["d"]),
        helper.make_node("Tanh", ["d"], ["e"]),
        helper.make_node("MatMul", ["e", "b"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 5))]
    graph = helper.make_graph(nodes, "net", inputs, outputs, weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))
    return path


def save_checkpoint(directory: Path) -> Path:
    """An untrained TLM: what these tests are about is not how good it is."""
    from tlmd.model import checkpoint, network
    from tlmd.model.ranker import Ranker

    checkpoint.save(
        checkpoint.Checkpoint(0, "nano", network.create("nano", 0), Ranker()), directory
    )
    return directory


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tlmd.cli", *map(str, arguments)]


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """`tlmd ARGUMENTS` in a process of its own."""
    return subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, check=False, **options
    )


def candidates(state: Path) -> list[str]:
    """Ids of everything measured in a state directory, in order; also beside a running job."""
    from tlmd.errors import BadInput, Failed
    from tlmd.records.store import RecordStore

    try:
        with RecordStore(state / "records.sqlite", read_only=True) as store:
            return measured(store.all_records())
    except (BadInput, Failed):  # not made yet
        return []


def measured(records: list[Record]) -> list[str]:
    """The ids of what was measured, in order.

    A race times finalists once more, which does not count; one of the same batch replaces the row.
    """
    found: list[str] = []
    for record in records:
        again = record.outcome.raced and record.candidate.id in found
        if record.outcome.status is not Status.INVALID and not again:
            found.append(record.candidate.id)
    return found


def children(group: int) -> list[int]:
    """Processes of a process group that are still there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry.name))
    return found
