"""The kernels of alternatives: their sums stay in the registers of the CPU."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tlmd.data.computation import DecisionKind, FactorLimit
from tlmd.data.model_spec import ModelSpec
from tlmd.generate.limits import repaired
from tlmd.language.uniform import draw_uniform
from tlmd.lowering.alternatives import with_alternatives
from tlmd.lowering.preparation import lower_source
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import resolve
from tlmd.space.space import TaskSpace

# A core with AVX-512 has 32 registers of vectors, one with AVX2 16.
MOST_SUMS = {"znver4": 28, "haswell": 12}


class Network(nn.Module):
    """A GEMM with 99 rows in each part, whose kernels have 3, 9 or 11, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(384, 384)
        self.convolution = nn.Conv2d(32, 64, 3, padding=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(self.wide(x)), self.convolution(y)


@pytest.fixture(scope="module", params=MOST_SUMS)
def spaces(request: pytest.FixtureRequest) -> tuple[dict[str, TaskSpace], int]:
    """The spaces of the alternatives by their names, and the most sums of a kernel."""
    target = resolve(f'{{"kind":"llvm","mcpu":"{request.param}"}}', 1)
    inputs = torch.randn(197, 384), torch.randn(1, 32, 14, 14)
    source = from_module("network", Network().eval(), inputs)
    tasks = with_alternatives(lower_source(ModelSpec("network"), source, target).tasks)
    found = {task.alternative: TaskSpace(task) for task in tasks if task.alternative}
    assert {"packed", "strassen2", "winograd4"} <= set(found)
    return found, MOST_SUMS[request.param]


def test_the_kernel_is_the_innermost_tile_of_the_rows_and_the_vectors(
    spaces: tuple[dict[str, TaskSpace], int],
) -> None:
    for name, space in spaces[0].items():
        for sketch in space.sketches:
            (limit,) = sketch.limits
            assert isinstance(limit, FactorLimit)
            tiles = [i for i, s in enumerate(sketch.open_decisions) if s.kind is DecisionKind.TILE]
            *spatial, _depth = tiles
            assert [index for index, _ in limit.factors] == spatial
            assert len(spatial) == (3 if name.startswith("winograd") else 2)
            assert all(at == sketch.open_decisions[i].arity - 1 for i, at in limit.factors)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30))
def test_no_kernel_that_is_proposed_has_more_sums_than_registers(
    spaces: tuple[dict[str, TaskSpace], int], seed: int
) -> None:
    rng = random.Random(seed)
    space = rng.choice(list(spaces[0].values()))
    drawn = draw_uniform(rng, space.task.id, space.sketches, space.quick_locations)
    sketch = space.sketches[drawn.sketch]
    decisions = repaired(rng, sketch, drawn.decisions)
    assert decisions is not None
    (limit,) = sketch.limits
    assert isinstance(limit, FactorLimit)
    sums = 1
    for index, position in limit.factors:
        sums *= decisions[index][position]
    assert sums <= spaces[1]


def test_a_record_of_a_larger_kernel_can_still_be_applied(
    spaces: tuple[dict[str, TaskSpace], int],
) -> None:
    found, _ = spaces
    space = found["strassen2"]
    rng = random.Random(0)
    drawn = (
        draw_uniform(rng, space.task.id, space.sketches, space.quick_locations) for _ in range(1000)
    )
    larger = next(c for c in drawn if not space.sketches[c.sketch].allows(c.decisions))
    space.finish(larger)
