"""Winograd's programs: how their tiles lie, what a kernel of them is, and what they compute."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.alternative_programs import direct_outputs, run
from tlmd.alternatives.groups import Blocks
from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.transforms import FILTERINGS, transform
from tlmd.alternatives.winograd_tiles import MOST_COLUMNS, MOST_ROWS, Planes, arranged
from tlmd.language.sentence import decode, encode
from tlmd.model_spec import ModelSpec
from tlmd.space.space import TaskSpace
from tlmd.space.target import resolve
from tlmd.types import Task
from tlmd.workloads.alternatives import with_alternatives
from tlmd.workloads.preparation import lower_source
from tlmd.workloads.torch_frontend import from_module

INFO = resolve("native")
AVX2 = '{"kind":"llvm","mcpu":"haswell","num-cores":1}'
"""It has half as many vector registers as newer CPUs."""
GOOD = {16: range(4, 9), 32: range(5, 15)}
"""Registers of a CPU -> rows of good kernels."""


class Network(nn.Module):
    """Convolutions of one image and of two, and in groups; fused with what follows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 32, 3, padding=1)
        self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=2)
        self.second = nn.Conv2d(32, 16, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.first(x))
        return torch.relu(x + self.grouped(x)), self.second(y)


@pytest.fixture(scope="module", params=["native", AVX2])
def tasks(request: pytest.FixtureRequest) -> list[Task]:
    if INFO.arch != "x86_64" and request.param == AVX2:
        pytest.skip("this machine cannot run programs for AVX2")
    torch.manual_seed(0)
    inputs = torch.randn(1, 16, 21, 22), torch.randn(2, 32, 9, 8)
    source = from_module("network", Network().eval(), inputs)
    lowered = lower_source(ModelSpec("network"), source, resolve(request.param))
    return [task for task in with_alternatives(lowered.tasks) if task.alternative in FILTERINGS]


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(FILTERINGS)), st.integers(0, 2**32 - 1))
def test_the_matrices_compute_a_convolution(name: str, seed: int) -> None:
    filtering, rng = FILTERINGS[name], np.random.default_rng(seed)
    size, outputs = filtering.inputs, filtering.outputs
    tile, weights = rng.uniform(-1, 1, (size, size)), rng.uniform(-1, 1, (3, 3, 1, 1))
    b, a = filtering.data, filtering.output
    got = a @ (transform(name, weights, (size, size, 1, 1))[:, :, 0, 0] * (b @ tile @ b.T)) @ a.T
    windows = np.lib.stride_tricks.sliding_window_view(tile, (3, 3))
    want = np.einsum("yxij,ij->yx", windows, weights[:, :, 0, 0])
    assert got.shape == (outputs, outputs) and np.abs(got - want).max() < 1e-12


@given(
    images=st.integers(1, 4),
    planes=st.integers(1, 2),
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    vectors=st.integers(1, 64),
    registers=st.sampled_from([16, 32]),
)
def test_tiles_lie_one_after_the_other_only_where_no_rows_and_columns_make_a_kernel(
    images: int, planes: int, rows: int, columns: int, vectors: int, registers: int
) -> None:
    blocks = Blocks(count=1, columns=8 * vectors, channels=8, groups=1)
    unit = VectorUnit(8, registers)
    tiles, panel = arranged(Planes(images, planes, planes), rows, columns, blocks, unit)
    assert blocks.columns % panel == 0
    kernels = {
        height * width
        for height in range(1, MOST_ROWS + 1)
        for width in range(1, MOST_COLUMNS + 1)
        if rows % height == columns % width == 0
    }
    has_good = not kernels.isdisjoint({4, 5, 6, 8} if registers == 16 else GOOD[32])
    count = images * rows * columns
    if not tiles.padded:
        assert tiles.extents(planes) == [images * planes, rows, columns]
        assert has_good or planes > 1 or count in kernels or vectors % 2
        return
    assert planes == 1 and count <= tiles.padded <= max(count + 8, 1.02 * count)
    assert count < min(GOOD[registers]) or any(tiles.padded % n == 0 for n in GOOD[registers])


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(0, 7))
def test_a_tile_is_found_where_it_was_put(images: int, rows: int, columns: int, more: int) -> None:
    tiles, _ = arranged(
        Planes(images, 1, 1), rows, columns, Blocks(1, 16, 16, 1), VectorUnit(8, 16)
    )
    places = [(n, h, w) for n in range(images) for h in range(rows) for w in range(columns)]
    for place in places:
        assert tuple(map(int, tiles.located(tiles.index(*place)))) == place


def test_random_candidates_are_right_and_can_be_said(tasks: list[Task]) -> None:
    rng, sketches = Random(0), []
    for task in tasks:
        arguments, want = direct_outputs(task, task.target)
        space = TaskSpace(task)
        sketches.append(len(space.sketches))
        for sketch in space.sketches:
            candidate = space.random(rng, sketch.index)
            assert decode(space.sketches, encode(sketch, candidate), task.id) == candidate
            got = run(space.finish(candidate).mod, arguments, task.target)
            assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
    assert set(sketches) == {1, 2}
