"""Strassen's algorithm: which GEMMs it applies to, what it computes, and how its weights lie."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.support.alternative_programs import AVX2, check_random_candidates, runnable
from tlmd.alternatives.packed.declaration import PACKED
from tlmd.alternatives.strassen.declaration import MULTIPLICATIONS, summed
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import Task
from tlmd.lowering.alternatives import with_alternatives
from tlmd.lowering.preparation import lower_source
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import resolve, tvm_target, vector_unit

INFO = resolve("native")
LANES = vector_unit(tvm_target(INFO)).lanes
WIDE = 24 * LANES


class Network(nn.Module):
    """GEMMs whose rows do not divide into parts, fused with what follows; a 1 x 1 convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(WIDE, 4 * WIDE, 1)
        self.second = nn.Linear(4 * WIDE, WIDE)
        self.narrow = nn.Linear(WIDE, LANES)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = nn.functional.gelu(self.second(y))
        return torch.relu(self.first(x)), self.narrow(y)


@pytest.fixture(scope="module", params=["native", AVX2])
def tasks(request: pytest.FixtureRequest) -> list[Task]:
    """The programs of Strassen's algorithm, and those with packed weights."""
    torch.manual_seed(0)
    inputs = torch.randn(1, WIDE, 23, 19), torch.randn(1, 437, 4 * WIDE)
    source = from_module("network", Network().eval(), inputs)
    lowered = lower_source(ModelSpec("network"), source, runnable(request.param))
    found = with_alternatives(lowered.tasks)
    return [task for task in found if task.alternative in (*MULTIPLICATIONS, PACKED.name)]


@given(st.sampled_from(sorted(MULTIPLICATIONS)), st.integers(0, 2**32 - 1))
def test_the_matrices_multiply(name: str, seed: int) -> None:
    by, rng = MULTIPLICATIONS[name], np.random.default_rng(seed)
    data, weights = rng.uniform(-1, 1, (2, by.parts, by.parts))
    products = (by.data @ data.ravel()) * (by.weights @ weights.ravel())
    got = (by.output @ products).reshape(by.parts, by.parts)
    assert np.abs(got - data @ weights).max() < 1e-12
    assert by.products < by.parts**3


@given(
    st.sampled_from(sorted(MULTIPLICATIONS)),
    *[st.integers(1, 3)] * 3,
)
def test_weights_are_sums_of_their_parts(name: str, depth: int, panels: int, width: int) -> None:
    by = MULTIPLICATIONS[name]
    rng = np.random.default_rng(0)
    columns = panels * by.parts * width
    weights = rng.integers(-9, 10, (by.parts * depth, columns)).astype("float32")
    got = summed(by, weights, (by.products, panels, depth, width))
    for product, panel, k, column in np.ndindex(got.shape):
        want = sum(
            by.weights[product, i * by.parts + j]
            * weights[i * depth + k, (panel * by.parts + j) * width + column]
            for i in range(by.parts)
            for j in range(by.parts)
        )
        assert got[product, panel, k, column] == want


def test_large_products_have_a_program_and_small_ones_none(tasks: list[Task]) -> None:
    kinds = [(t.alternative, "conv" in t.name) for t in tasks if t.alternative != PACKED.name]
    assert sorted(kinds) == sorted((n, c) for n in MULTIPLICATIONS for c in (True, False))


@pytest.mark.slow
def test_random_candidates_are_right_and_can_be_said(tasks: list[Task]) -> None:
    rng = Random(0)
    for task in tasks:
        check_random_candidates(task, rng)
