"""Grouped convolutions with packed weights: a panel's data are copied when the panel begins."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import nn

from tests.support.alternative_programs import AVX2, check_random_candidates, runnable
from tlmd.alternatives.packed.declaration import PACKED
from tlmd.alternatives.packed.packed import GROUPED
from tlmd.alternatives.scheduling import block_names
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import Task
from tlmd.lowering.alternatives import with_alternatives
from tlmd.lowering.preparation import lower_source
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.space import TaskSpace

WIDTH = 8  # a kernel divides it on every CPU


class Network(nn.Module):
    """A stride, groups narrower than vectors, odd sizes, one dimension, and nothing to pad."""

    def __init__(self) -> None:
        super().__init__()
        self.strided = nn.Conv2d(64, 128, 3, 2, 1, groups=2)
        self.narrow = nn.Conv2d(128, 128, 3, 1, 1, groups=16)
        self.odd = nn.Conv2d(64, 64, 5, 2, 2, groups=2)
        self.line = nn.Conv1d(64, 64, 3, 2, 1, groups=2)
        self.whole = nn.Conv2d(128, 128, 1, groups=4)

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        x = torch.relu(self.strided(x))
        return self.whole(x + self.narrow(x)), torch.relu(self.odd(y)), self.line(z)


@pytest.fixture(scope="module", params=["native", AVX2])
def tasks(request: pytest.FixtureRequest) -> list[Task]:
    torch.manual_seed(0)
    shapes = (2, 64, 12, 2 * WIDTH), (1, 64, 13, 25), (2, 64, 37)
    inputs = tuple(torch.randn(shape) for shape in shapes)
    source = from_module("network", Network().eval(), inputs)
    lowered = lower_source(ModelSpec("network"), source, runnable(request.param))
    found = with_alternatives(lowered.tasks)
    return [task for task in found if task.alternative == PACKED.name]


def test_padded_data_are_made_when_a_panel_begins(tasks: list[Task]) -> None:
    spaces = [TaskSpace(task) for task in tasks]
    assert sorted(len(space.sketches) for space in spaces) == [1, 1, 1, 1, 3]
    for space in (space for space in spaces if len(space.sketches) == 1):
        schedule = space.schedule(space.random(Random(0)))
        data = schedule.get_sblock(block_names(schedule)[0])
        assert len(schedule.get_loops(data)) > len(schedule.get(data).iter_vars) + 1  # vectors
        *_, row, vector, _ = map(schedule.get, schedule.get_loops(schedule.get_sblock(GROUPED)))
        assert row.extent * vector.extent >= 7  # sums that are added to at the same time


@pytest.mark.slow
def test_random_candidates_are_right_and_can_be_said(tasks: list[Task]) -> None:
    rng = Random(0)
    for task in tasks:
        check_random_candidates(task, rng, count=4)
