"""Activations that become polynomials, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from tvm import relax

from tests.support.lowered import INFO, lowered_module
from tlmd.lowering import lowering
from tlmd.space.hardware.target import tvm_target

NUMBERS = 48
EXTREME = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 1e4, -1e4, 3e38)


class Both(nn.Module):
    """All that is made of the logistic function."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.sigmoid(x), nn.functional.silu(x), x * torch.sigmoid(2 * x)


@pytest.fixture(scope="module")
def machine() -> relax.VirtualMachine:
    model, _ = lowered_module(Both().eval(), (torch.zeros(NUMBERS),))
    compiled = lowering.compile_model(model.lowered, tvm_target(INFO))
    return relax.VirtualMachine(compiled.executable, tvm.cpu())


def _compare(machine: relax.VirtualMachine, values: NDArray[np.float32]) -> None:
    wanted = Both()(torch.from_numpy(values))
    found = machine["main"](tvm.runtime.tensor(values))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-30)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-80, 80, width=32), min_size=NUMBERS, max_size=NUMBERS))
def test_the_logistic_function_is_exact_to_a_few_digits(
    machine: relax.VirtualMachine, values: list[float]
) -> None:
    _compare(machine, np.array(values, "float32"))


def test_extreme_numbers(machine: relax.VirtualMachine) -> None:
    values = np.resize(np.array(EXTREME, "float32"), NUMBERS)
    found = [one.numpy() for one in machine["main"](tvm.runtime.tensor(values))]
    wanted = [one.numpy() for one in Both()(torch.from_numpy(values))]
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-37)
    finite = np.isfinite(values) | (values > 0) | np.isnan(values)
    for got, want in zip(found[1:], wanted[1:], strict=True):  # PyTorch: -inf * 0 is NaN
        np.testing.assert_allclose(got[finite], want[finite], rtol=1e-5, atol=1e-30)
