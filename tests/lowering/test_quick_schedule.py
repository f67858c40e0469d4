"""Quick schedules: the same numbers, vectors where they pay, and plain loops everywhere else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tlmd.lowering import comparison, lowering, quick_schedule
from tlmd.lowering.tunable import is_tunable
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import resolve, tvm_target

TARGET = tvm_target(resolve("native"))


class Rows(nn.Module):
    """Reductions of other kinds: sums, the largest, and where it is."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(0), x.amax(0), x.argmax(0), x.cumsum(1), x.softmax(1), x.flip(0).sum()


@pytest.mark.parametrize(
    ("network", "inputs", "vectors"),
    [
        (nn.Conv2d(16, 32, 3, padding=1), (2, 16, 20, 20), 1),
        (nn.Conv2d(16, 32, 3, groups=4), (2, 16, 22, 22), 1),
        (nn.Conv2d(8, 7, 3), (2, 8, 40, 40), 1),
        (nn.Conv2d(8, 3, 3), (2, 8, 40, 40), 0),  # no vector is as narrow as this
        (nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64)), (80, 64), 2),
        (nn.ConvTranspose2d(8, 16, 4, 2), (1, 8, 16, 16), 1),
        (nn.LSTM(16, 16), (12, 4, 16), 0),
        (Rows(), (512, 512), 1),
    ],
)
def test_the_numbers_are_those_of_the_original(
    network: nn.Module, inputs: tuple[int, ...], vectors: int
) -> None:
    torch.manual_seed(0)
    source = from_module("network", network.eval(), (torch.randn(inputs),))
    lowered = lowering.lower(source.module, TARGET)
    quick = quick_schedule.scheduled(lowered, TARGET)
    made = [var for var, func in lowered.functions.items() if is_tunable(func)]
    assert sum(not is_tunable(quick[var]) for var in made) >= vectors
    if not vectors:
        assert all(is_tunable(quick[var]) for var in made)
    run = comparison.runner(lowering.compile_model(quick, TARGET).executable)
    assert source.reference is not None
    expected = source.reference(*source.example)
    for actual, right in zip(run(source.example), expected, strict=True):
        np.testing.assert_allclose(actual, right, rtol=1e-4, atol=1e-4)


def test_a_card_keeps_its_own_schedules() -> None:
    source = from_module("network", nn.Linear(64, 64), (torch.randn(128, 64),))
    lowered = lowering.lower(source.module, TARGET)
    card = tvm_target(resolve('{"kind":"cuda","arch":"sm_80","max_threads_per_block":1024}'))
    assert quick_schedule.scheduled(lowered, card) is lowered
