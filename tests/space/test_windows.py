"""The sketch of depthwise convolutions and pools."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, topi

from tlmd.alternatives.kernel import VectorUnit
from tlmd.language.sentence import decode, encode
from tlmd.lowering.identity import task_id
from tlmd.lowering.lowering import as_task
from tlmd.space.hardware.target import resolve, tvm_target
from tlmd.space.rules import window_sketches
from tlmd.space.space import TaskSpace

INFO = resolve("native")
UNIT = VectorUnit(16)


@dataclass(frozen=True)
class Depthwise:
    """A depthwise convolution of one picture, as in a lowered model."""

    rows: int
    columns: int
    channels: int
    window: int
    stride: int
    dilation: int
    activated: bool

    @property
    def padding(self) -> int:
        return self.dilation * (self.window // 2)

    def module(self) -> Any:
        data = te.placeholder((1, self.rows, self.columns, self.channels), name="data")
        weights = te.placeholder((self.window, self.window, 1, self.channels), name="weights")
        pad = (0, self.padding, self.padding, 0)
        padded = topi.nn.pad(data, pad, pad, 0.0) if self.padding else data
        size = self.dilation * (self.window - 1)
        shape = [
            (extent + 2 * self.padding - size - 1) // self.stride + 1
            for extent in (self.rows, self.columns)
        ]
        y, x, c = (
            te.reduce_axis((0, n), k) for n, k in ((self.window, "y"), (self.window, "x"), (1, "c"))
        )
        step, wide = self.stride, self.dilation
        summed = te.compute(
            (1, *shape, self.channels),
            lambda n, i, j, f: te.sum(
                padded[n, i * step + y * wide, j * step + x * wide, f + c] * weights[y, x, c, f],
                axis=[y, x, c],
            ),
            name="depthwise",
        )
        out = topi.nn.relu(summed) if self.activated else summed
        return tvm.IRModule({"main": te.create_prim_func([data, weights, out])})

    def expected(self, data: Any, weights: Any) -> Any:
        found = torch.nn.functional.conv2d(
            torch.from_numpy(data).permute(0, 3, 1, 2),
            torch.from_numpy(weights).permute(3, 2, 0, 1),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.channels,
        )
        found = found.relu() if self.activated else found
        return found.permute(0, 2, 3, 1).contiguous().numpy()


_layers = st.builds(
    Depthwise,
    rows=st.integers(6, 15),
    columns=st.integers(6, 15),
    channels=st.sampled_from((4, 16, 24, 48)),
    window=st.sampled_from((1, 3, 5)),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    activated=st.booleans(),
)


@settings(deadline=None, max_examples=15)
@given(_layers, st.integers(0, 1 << 20))
@pytest.mark.slow
def test_depthwise_convolutions_are_computed_rightly(layer: Depthwise, seed: int) -> None:
    module = layer.module()
    space = TaskSpace(as_task(task_id(module), module, "main", 1, INFO))
    own = len(space.sketches) - 1
    traces = window_sketches.sketch(module, UNIT, 16)
    assert len(traces) == 1
    candidate = space.random(Random(seed), own)
    assert (
        decode(space.sketches, encode(space.sketches[own], candidate), space.task.id) == candidate
    )
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((1, layer.rows, layer.columns, layer.channels), "float32")
    weights = rng.standard_normal((layer.window, layer.window, 1, layer.channels), "float32")
    want = layer.expected(data, weights)
    given_arrays = (data, weights, np.full_like(want, np.nan))
    tensors = [tvm.runtime.tensor(array) for array in given_arrays]
    tvm.compile(space.finish(candidate).mod, tvm_target(INFO))["main"](*tensors)
    np.testing.assert_allclose(tensors[2].numpy(), want, atol=1e-4)


def _pool(kind: str, channels: int, layout: str) -> Any:
    shape = (2, channels, 12, 12) if layout == "NCHW" else (2, 12, 12, channels)
    data = te.placeholder(shape, name="data")
    pads = [1, 1, 1, 1]
    pooled = topi.nn.pool2d(data, [3, 3], [2, 2], [1, 1], pads, kind, False, layout, True)
    return tvm.IRModule({"main": te.create_prim_func([data, pooled])})


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pools_have_the_sketch_where_channels_fill_vectors(kind: str) -> None:
    assert len(window_sketches.sketch(_pool(kind, 32, "NHWC"), UNIT, 16)) == 1
    assert window_sketches.sketch(_pool(kind, 3, "NHWC"), UNIT, 16) == []
    assert window_sketches.sketch(_pool(kind, 32, "NCHW"), UNIT, 16) == []


def test_other_sums_do_not_have_it() -> None:
    left, right = te.placeholder((64, 32), name="left"), te.placeholder((32, 64), name="right")
    module = tvm.IRModule({"main": te.create_prim_func([left, right, topi.matmul(left, right)])})
    assert window_sketches.sketch(module, UNIT, 16) == []
    soft = topi.nn.softmax(left, axis=-1)
    module = tvm.IRModule({"main": te.create_prim_func([left, soft])})
    assert window_sketches.sketch(module, UNIT, 16) == []
