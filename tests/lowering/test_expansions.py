"""Expansions and the depthwise convolutions after them as one task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.support.lowered import INFO, error_of, lowered_module, task_names
from tlmd.alternatives.kernel import VectorUnit
from tlmd.data.types import TargetInfo
from tlmd.language.sentence import decode, encode
from tlmd.lowering import lowering
from tlmd.lowering.passes import fuse_expansions
from tlmd.space.hardware.target import resolve, tvm_target
from tlmd.space.rules import expansion_sketches as sketches
from tlmd.space.space import TaskSpace

NARROW = resolve('{"kind":"llvm","mcpu":"x86-64-v3"}')
LARGE = 64  # columns and rows of an image whose expansion to 64 channels has 1 MiB


@dataclass(frozen=True)
class Block:
    """The beginning of a block as in MobileNet."""

    rows: int
    columns: int
    inputs: int
    channels: int
    first: tuple[int, int, int]
    """Window, stride and padding of the expansion."""

    window: int
    stride: int
    dilation: int
    padding: int
    activation: type[nn.Module]
    images: int = 1

    def network(self) -> nn.Module:
        layers = [
            nn.Conv2d(self.inputs, self.channels, *self.first),
            self.activation(),
            nn.Conv2d(
                *(self.channels, self.channels, self.window, self.stride, self.padding),
                dilation=self.dilation,
                groups=self.channels,
            ),
            self.activation(),
        ]
        return nn.Sequential(*layers).eval()

    @property
    def image(self) -> torch.Tensor:
        return torch.randn(self.images, self.inputs, self.rows, self.columns)


_blocks = st.builds(
    Block,
    rows=st.integers(20, 27),
    columns=st.integers(20, 27),
    inputs=st.sampled_from((3, 7)),
    channels=st.sampled_from((8, 16, 24, 48)),
    first=st.sampled_from(((1, 1, 0), (3, 1, 1), (3, 2, 1), (2, 1, 0))),
    window=st.sampled_from((3, 5)),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 3),
    activation=st.sampled_from((nn.Identity, nn.ReLU6, nn.SiLU)),
    images=st.integers(1, 2),
)


@settings(deadline=None, max_examples=12)
@given(_blocks, st.integers(0, 1 << 20), st.sampled_from((INFO, NARROW)))
@pytest.mark.slow
def test_random_candidates_are_right_and_can_be_said(
    block: Block, seed: int, target: TargetInfo
) -> None:
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse_expansions, "_LEAST_BYTES", 1)
        model, source = lowered_module(block.network(), (block.image,))
    (task,) = (task for task in model.tasks if task.name.count("conv2d") == 2)
    space = TaskSpace(replace(task, target=target))
    assert len(space.sketches) == 1
    candidate = space.random(Random(seed))
    sentence = encode(space.sketches[0], candidate)
    assert decode(space.sketches, sentence, task.id) == candidate
    function = tvm.ir.load_json(task.module)["main"]
    rng = np.random.default_rng(seed)
    shapes = [[int(extent) for extent in one.ty.shape] for one in function.params]
    arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    results = []
    for scheduled in (tvm.ir.load_json(task.module), space.finish(candidate).mod):
        tensors = [tvm.runtime.tensor(array) for array in (*arrays[:-1], arrays[-1] * np.nan)]
        tvm.compile(scheduled, tvm_target(target))["main"](*tensors)
        results.append(tensors[-1].numpy())
    np.testing.assert_allclose(results[1], results[0], atol=1e-4)
    assert error_of(model, source) < 1e-4


def _names(network: nn.Module, channels: int = 8, size: int = LARGE) -> list[str]:
    model, source = lowered_module(network.eval(), (torch.randn(1, channels, size, size),))
    assert error_of(model, source) < 1e-4
    return [name for name in task_names(model) if "conv2d" in name]


def _layers(*between: nn.Module, groups: int = 64) -> nn.Sequential:
    depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=groups)
    return nn.Sequential(nn.Conv2d(8, 64, 1), *between, depthwise, nn.ReLU(), nn.Conv2d(64, 8, 1))


def test_a_large_expansion_and_its_depthwise_convolution_are_one_task() -> None:
    names = _names(_layers(nn.Hardswish()))
    assert sorted(name.count("conv2d") for name in names) == [1, 2]


@pytest.mark.parametrize("size", [LARGE - 1, LARGE // 2])
def test_a_small_expansion_stays_apart(size: int) -> None:
    assert all(name.count("conv2d") == 1 for name in _names(_layers(nn.ReLU()), size=size))


def test_an_expansion_of_long_rows_stays_apart() -> None:
    wide = nn.Sequential(nn.Conv2d(192, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, groups=64))
    assert all(name.count("conv2d") == 1 for name in _names(wide, 192))


def test_what_is_no_depthwise_convolution_stays_apart() -> None:
    assert all(name.count("conv2d") == 1 for name in _names(_layers(nn.ReLU(), groups=8)))


class Twice(nn.Module):
    """Uses the expansion twice."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(8, 64, 1)
        self.depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(self.expand(x))
        return torch.relu(self.depthwise(wide)) + wide


def test_a_first_convolution_is_an_expansion_if_its_sums_are_short() -> None:
    for channels, joined in ((3, 1), (8, 0)):
        first = nn.Conv2d(channels, 64, 3, stride=2, padding=1)
        network = nn.Sequential(first, nn.ReLU(), nn.Conv2d(64, 64, 3, groups=64), nn.ReLU())
        names = _names(network, channels, 2 * LARGE)
        assert sum(name.count("conv2d") == 2 for name in names) == joined


def test_an_expansion_that_others_read_stays_apart() -> None:
    assert all(name.count("conv2d") == 1 for name in _names(Twice()))


def test_blocks_of_one_kind_are_one_task() -> None:
    torch.manual_seed(0)
    block = _layers(nn.ReLU())
    names = _names(nn.Sequential(block, _layers(nn.ReLU())))
    assert sum(name.count("conv2d") == 2 for name in names) == 1


def test_other_tuners_see_them_apart() -> None:
    _, source = lowered_module(_layers(nn.ReLU()).eval(), (torch.randn(1, 8, LARGE, LARGE),))
    lowered = lowering.lower(source.module, tvm_target(INFO), restructure=False)
    names = [task.name for task in lowering.extract(lowered, INFO)]
    assert all(name.count("conv2d") < 2 for name in names)


def test_other_programs_do_not_have_the_sketch() -> None:
    layers = nn.Sequential(nn.Conv2d(8, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16))
    model, _ = lowered_module(layers.eval(), (torch.randn(1, 8, 16, 16),))
    assert len(model.tasks) >= 2
    for task in model.tasks:
        assert sketches.sketch(tvm.ir.load_json(task.module), VectorUnit(16), 16, 1) == []
