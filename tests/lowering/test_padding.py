"""Zeros around an image as the padding of the convolution after them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.support.lowered import error_of, lowered_module, outputs_of, task_names

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Padded(nn.Module):
    """A convolution of an image with something around it."""

    def __init__(self, widths: tuple[int, ...], rank: int, value: float = 0.0, **more: Any) -> None:
        super().__init__()
        self.widths, self.value = widths, value
        self.mode = more.pop("mode", "constant")
        self.convolution = CONVOLUTIONS[rank](4, 8, 3, **more)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = self.value if self.mode == "constant" else None
        padded = functional.pad(x, self.widths, self.mode, value)
        made: torch.Tensor = self.convolution(padded)
        return made


def _lowered(network: nn.Module, rank: int) -> list[str]:
    torch.manual_seed(0)
    model, source = lowered_module(network.eval(), (torch.randn(2, 4, *[7] * rank),))
    assert error_of(model, source) < 1e-5
    return task_names(model)


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 2),
    st.sampled_from((1, 2)),
)
@pytest.mark.slow
def test_zeros_of_any_width_become_padding(
    widths: list[int], rank: int, stride: int, padding: int, groups: int
) -> None:
    settings_ = {"stride": stride, "padding": padding, "groups": groups}
    network = Padded(tuple(widths[: 2 * rank]), rank, **settings_)
    assert not any("pad" in name for name in _lowered(network, rank))


@pytest.mark.parametrize(
    ("widths", "more"),
    [
        ((1, 1, 1, 1), {"value": 1.0}),
        ((1, 1, 1, 1), {"mode": "reflect"}),
        ((1, -1, 0, 1), {}),
        ((0, 0, 1, 0, 1, 1), {}),  # channels, too
    ],
)
def test_other_paddings_are_computed_as_they_are(widths: Any, more: dict[str, Any]) -> None:
    network = Padded(widths, 2, **more)
    if len(widths) > 4:
        network.convolution = nn.Conv2d(6, 8, 3)
    _lowered(network, 2)


def test_an_image_that_others_read_is_padded_for_each() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Conv2d(4, 8, 3), nn.Conv2d(4, 8, 5, padding=1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            padded = functional.pad(x, (0, 1, 0, 1))
            return self.one(padded), self.other(padded)

    model, source = lowered_module(Twice().eval(), (torch.randn(1, 4, 9, 9),))
    for got, want in outputs_of(model, source):
        np.testing.assert_allclose(got, want, atol=1e-5)
    assert not any("pad" in name for name in task_names(model))
