"""What disappears when a PyTorch program is normalised: empty tensors, and checks of data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.support.operators import Calls, lowered_outputs, normalised
from tlmd.data.errors import BadInput
from tlmd.models.pytorch.torch_frontend import from_module

SOME = settings(max_examples=10, deadline=None, derandomize=True)


class WithEmpty(nn.Module):
    """Empty tensors that disappear again."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.zeros(1, 0, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tokens = self.tokens.expand(x.shape[0], -1, -1)
        none = x[:, 3:] * 2
        joined = torch.cat([torch.cat([x[:, :0], none], 1), x, tokens], 1)
        flat = torch.cat([torch.tensor([]), x.reshape(-1)])
        product = none.transpose(1, 2) @ none + x[:, :1]
        return joined, flat, none.sum(1) + 1, product, none.prod(1)


def test_empty_tensors_that_disappear_are_removed() -> None:
    module, x = WithEmpty(), torch.randn(2, 3, 4)
    for value, right in zip(lowered_outputs(module, x), module(x), strict=True):
        assert value.dtype == right.detach().numpy().dtype
        np.testing.assert_allclose(value, right.detach().numpy(), 1e-5)


@pytest.mark.parametrize(
    "function", [lambda x: x[:, :0], lambda x: torch.cat([x[:0], x[:0]], 1), lambda x: x[:0].exp()]
)
def test_an_empty_output_is_refused(function: Any) -> None:
    with pytest.raises(BadInput, match="the model has an empty tensor, from aten"):
        from_module("the model", Calls(function), (torch.randn(2, 3),))


class Checked(nn.Module):
    """It checks its data, and puts the rows of `y` where a mask says so."""

    def forward(self, x: Any, y: Any, mask: Any) -> tuple[torch.Tensor, ...]:
        torch._check_tensor_all(  # type: ignore[no-untyped-call]
            mask.sum() * 4 == y.numel()
        )
        torch._assert_async((x < 100).all())
        return x.masked_scatter(mask[..., None], y), x[0].masked_scatter(mask[..., None], y)


@given(st.lists(st.booleans(), min_size=6, max_size=6))
@SOME
@pytest.mark.slow
def test_masked_scatter_takes_the_source_in_order(flags: list[bool]) -> None:
    mask = torch.tensor(flags).reshape(2, 3)
    module = Calls(lambda x, y, m: (x.masked_scatter(m, y), x[0].masked_scatter(m, y)))
    normalised(module, torch.randn(2, 3, 4), torch.randn(6, 4), mask[..., None].expand(2, 3, 4))


def test_checks_of_data_are_dropped() -> None:
    mask = torch.tensor([[True, False, True], [False, True, False]])
    inputs = (torch.randn(2, 3, 4), torch.randn(3, 4), mask)
    for value, right in zip(lowered_outputs(Checked(), *inputs), Checked()(*inputs), strict=True):
        np.testing.assert_array_equal(value, right.numpy())
