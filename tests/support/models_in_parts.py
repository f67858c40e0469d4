"""Models of which TVM cannot compile all, in PyTorch and ONNX."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from tests.support.onnx_models import MICROSOFT, node

Made = tuple[nn.Module, Any]
_SIZE = 32


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(_SIZE, 64), nn.ReLU(), nn.Linear(64, _SIZE), nn.Tanh())


class Between(nn.Module):
    """Layers, something else, and layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = _layers(), _layers()

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> Any:
        """`x` has rows of 32 numbers."""
        return self.after(self.middle(self.before(x)))


class Fourier(Between):
    """TVM has no Fourier transform."""

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(torch.fft.fft(x).real)


class Drawing(Between):
    """It draws random numbers twice."""

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x) - torch.randn_like(x)


class Selecting(Between):
    """The size of an output depends on the data."""

    def forward(self, x: torch.Tensor) -> Any:
        y = self.before(x)
        return {"rows": y[y[:, 0] > 0], "all": [self.after(y)]}


class Counting(Between):
    """It counts its calls in a buffer, and adds the count."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(_SIZE))

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1.0
        return x + self.count


class Writing(Between):
    """It writes to its input."""

    def forward(self, x: torch.Tensor) -> Any:
        y = self.before(x)
        x.mul_(2.0)
        return self.after(y)


class Branching(Between):
    """torch.export cannot export it."""

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Normed(Between):
    """It has an operator that a test lets TVM import wrongly."""

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 3.0


def _made(cls: type[Between]) -> Made:
    torch.manual_seed(0)
    return cls().eval(), (torch.randn(4, _SIZE),)


fourier = partial(_made, Fourier)
drawing = partial(_made, Drawing)
selecting = partial(_made, Selecting)
counting = partial(_made, Counting)
writing = partial(_made, Writing)
branching = partial(_made, Branching)
normed = partial(_made, Normed)


def _weights() -> list[Any]:
    generator = np.random.default_rng(0)
    shapes = {"w1": (_SIZE, 64), "w2": (64, _SIZE)}
    return [
        numpy_helper.from_array(generator.standard_normal(s).astype(np.float32) / 8, name)
        for name, s in shapes.items()
    ]


def _dense(x: str, y: str) -> list[Any]:
    return [
        node("MatMul", f"{x} w1", f"{y}_1"),
        node("Relu", f"{y}_1", f"{y}_2"),
        node("MatMul", f"{y}_2 w2", f"{y}_3"),
        node("Tanh", f"{y}_3", y),
    ]


def _float(name: str, *shape: int | str | None) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _loop() -> Any:
    body = [node("Identity", "go", "go_on"), node("Add", "sum h", "more")]
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        _float("sum", 4, _SIZE),
    ]
    outputs = [
        helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
        _float("more", 4, _SIZE),
    ]
    return helper.make_graph(body, "body", inputs, outputs)


# What stands between the layers; h is its input and m its output.
ONNX: dict[str, list[Any]] = {
    "DFT": [
        node("Unsqueeze", "h two", "h4"),
        node("DFT", "h4", "d", axis=1),
        node("ReduceSum", "d two", "m", keepdims=0),
    ],
    "Loop": [node("Loop", "n _ h", "m", body=_loop())],
    "strings": [
        node("Cast", "h", "s", to=TensorProto.STRING),
        node("Cast", "s", "m", to=TensorProto.FLOAT),
    ],
    "sequence": [
        node("SplitToSequence", "h one", "s"),
        node("SequenceAt", "s n", "row"),
        node("Add", "row h", "m"),
    ],
    "custom": [
        node("CDist", "h h", "c", domain=MICROSOFT, metric="euclidean"),
        node("MatMul", "c h", "m"),
    ],
    "random": [node("RandomNormalLike", "h", "r"), node("Add", "r h", "m")],
}


def onnx_file(kind: str, folder: Path) -> Path:
    """A file of ONNX with the operators `kind` of `ONNX` between layers."""
    constants = [
        numpy_helper.from_array(np.array([2], np.int64), "two"),
        numpy_helper.from_array(np.array(1, np.int64), "one"),
    ]
    inputs = [_float("x", 4, _SIZE)]
    if kind in ("Loop", "sequence"):
        inputs.append(helper.make_tensor_value_info("n", TensorProto.INT64, []))
    nodes = [*_dense("x", "h"), *ONNX[kind], *_dense("m", "y")]
    graph = helper.make_graph(
        nodes, "g", inputs, [_float("y", 4, _SIZE)], [*_weights(), *constants]
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    path = folder / f"{kind}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
    return path
