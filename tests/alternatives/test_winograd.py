"""Winograd's programs: how their tiles lie, what a kernel of them is, and what they compute."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.support.alternative_programs import (
    AVX2,
    check_random_candidates,
    native_by_vectors,
    runnable,
)
from tlmd.alternatives.groups import Blocks
from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.winograd.declaration import FILTERINGS, transformed
from tlmd.alternatives.winograd.winograd_tiles import MOST_COLUMNS, MOST_ROWS, Planes, arranged
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import Task
from tlmd.lowering.alternatives import with_alternatives
from tlmd.lowering.preparation import lower_source
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.space import TaskSpace

GOOD = {16: range(4, 9), 32: range(5, 15)}
"""Registers of a CPU -> rows of good kernels."""


class Network(nn.Module):
    """Convolutions of one image and of two, in groups, and in 3-D; fused with what follows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(128, 128, 3, padding=1)
        self.grouped = nn.Conv2d(128, 128, 3, padding=1, groups=8)
        self.second = nn.Conv2d(128, 128, 3)
        self.solid = nn.Conv3d(64, 64, 3, padding=(0, 1, 1))

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        x = torch.relu(self.first(x))
        return torch.relu(x + self.grouped(x)), self.second(y), self.solid(z)


@pytest.fixture(scope="module", params=["native", AVX2])
def tasks(request: pytest.FixtureRequest) -> list[Task]:
    torch.manual_seed(0)
    inputs = torch.randn(1, 128, 21, 22), torch.randn(2, 128, 9, 8), torch.randn(1, 64, 4, 13, 14)
    source = from_module("network", Network().eval(), inputs)
    # With a matrix unit, programs for it are so much less work that some others are left out.
    info = native_by_vectors() if request.param == "native" else runnable(request.param)
    lowered = lower_source(ModelSpec("network"), source, info)
    return [task for task in with_alternatives(lowered.tasks) if task.alternative in FILTERINGS]


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(FILTERINGS)), st.integers(0, 2**32 - 1))
def test_the_matrices_compute_a_convolution(name: str, seed: int) -> None:
    filtering, rng = FILTERINGS[name], np.random.default_rng(seed)
    size, outputs = filtering.inputs, filtering.outputs
    tile, weights = rng.uniform(-1, 1, (size, size)), rng.uniform(-1, 1, (3, 3, 1, 1))
    b, a = filtering.data, filtering.output
    tiles = transformed(filtering, weights, (size, size, 1, 1))[:, :, 0, 0]
    got = a @ (tiles * (b @ tile @ b.T)) @ a.T
    windows = np.lib.stride_tricks.sliding_window_view(tile, (3, 3))
    want = np.einsum("yxij,ij->yx", windows, weights[:, :, 0, 0])
    assert got.shape == (outputs, outputs) and np.abs(got - want).max() < 1e-12


@given(
    images=st.integers(1, 4),
    planes=st.integers(1, 3),
    more=st.integers(0, 2),
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    vectors=st.integers(1, 64),
    channels=st.sampled_from([8, 64, 512]),
    registers=st.sampled_from([16, 32]),
)
def test_tiles_lie_one_after_the_other_only_where_no_rows_and_columns_make_a_kernel(
    images: int,
    planes: int,
    more: int,
    rows: int,
    columns: int,
    vectors: int,
    channels: int,
    registers: int,
) -> None:
    blocks = Blocks(count=1, columns=8 * vectors, channels=channels, groups=1)
    unit = VectorUnit(8, registers)
    tiles, panel = arranged(Planes(images, planes + more, planes), rows, columns, blocks, unit)
    assert blocks.columns % panel == 0
    kernels = {
        height * width
        for height in range(1, MOST_ROWS + 1)
        for width in range(1, MOST_COLUMNS + 1)
        if rows % height == columns % width == 0
    }
    has_good = not kernels.isdisjoint({4, 5, 6, 8} if registers == 16 else GOOD[32])
    has_many = (more + 1) * channels * 8 * vectors >= 64 * (channels + 8 * vectors)
    count = images * planes * rows * columns
    if not tiles.padded:
        assert tiles.of_data() == [images * (planes + more), rows, columns]
        assert tiles.of_output() == [images * planes, rows, columns]
        can_be_along = count not in kernels and (images == 1 or not more)
        assert has_good or not can_be_along or not has_many
        return
    assert has_many and (not has_good or vectors % 2)
    assert tiles.of_output() == [tiles.padded] and (images == 1 or not more)
    assert count <= tiles.padded <= max(count + 8, 1.02 * count)
    assert count < min(GOOD[registers]) or any(tiles.padded % n == 0 for n in GOOD[registers])


@given(
    images=st.integers(1, 3),
    planes=st.integers(1, 3),
    more=st.integers(0, 2),
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    registers=st.sampled_from([16, 32]),
)
def test_a_product_reads_the_tile_of_its_place_in_the_plane_of_its_tap(
    images: int, planes: int, more: int, rows: int, columns: int, registers: int
) -> None:
    every = Planes(images, planes + more, planes)
    blocks, unit = Blocks(count=1, columns=16, channels=16, groups=1), VectorUnit(8, registers)
    tiles, _ = arranged(every, rows, columns, blocks, unit)
    for image, plane, row, column, tap in itertools.product(
        *map(range, (images, planes, rows, columns, more + 1))
    ):
        index = tiles.read(tiles.index(image * planes + plane, row, column), tap)
        assert all(0 <= at < extent for at, extent in zip(index, tiles.of_data(), strict=True))
        at = [int(one) for one in tiles.located(index)]
        assert at == [image * (planes + more) + plane + tap, row, column]


@pytest.mark.slow
def test_random_candidates_are_right_and_can_be_said(tasks: list[Task]) -> None:
    rng = Random(0)
    for task in tasks:
        check_random_candidates(task, rng)
    assert {len(TaskSpace(task).sketches) for task in tasks} == {1, 2}


def test_weights_that_are_an_input_are_not_transformed() -> None:
    class Dynamic(nn.Module):
        """A convolution of which only the bias is constant."""

        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.randn(64))

        def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return torch.relu(nn.functional.conv2d(x, weights, self.bias, padding=1))

    inputs = torch.randn(1, 64, 14, 14), torch.randn(64, 64, 3, 3)
    source = from_module("network", Dynamic().eval(), inputs)
    tasks = lower_source(ModelSpec("network"), source, runnable(AVX2)).tasks
    assert any(task.constants for task in tasks)
    assert with_alternatives(tasks) == tasks
