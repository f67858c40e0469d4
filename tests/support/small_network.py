"""A network of three layers in every form that tlmd reads; its widths say which test tunes it.

Two of these networks have no task in common, so tests that share a daemon share no records.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, channels: int, colours: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(colours, channels, 3, padding=1)
        self.second = nn.Linear(channels * 64, 2 * channels)
        self.third = nn.Linear(2 * channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x)).flatten(1)
        return torch.as_tensor(self.third(torch.relu(self.second(x))))


Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def make(channels: int = 8, colours: int = 3) -> Made:
    torch.manual_seed(0)
    return Net(channels, colours).eval(), (torch.randn(1, colours, 8, 8),)


def make_other() -> Made:
    return make(12, 4)


def make_third() -> Made:
    return make(16, 5)


def make_fourth() -> Made:
    return make(24, 8)


def make_wide() -> Made:
    return make(32, 6)


def save_pt2(path: Path) -> Path:
    module, example = make(20, 7)
    torch.export.save(torch.export.export(module, example), path)
    return path


def save_onnx(path: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    shapes = {"w": (10, 2, 3, 3), "a": (640, 24), "b": (24, 5)}
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
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, 8, 8))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 5))]
    graph = helper.make_graph(nodes, "net", inputs, outputs, weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))
    return path
