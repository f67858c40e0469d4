"""Outputs of an optimised model lie in memory as those of the original do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.eager_models import Net, X, optimized

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries_are_faster")]


@pytest.fixture(autouse=True)
def _prepare(small_tlm: Path) -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Shapes(nn.Module):
    """Returns its input, a part of it, a weight, constants, and outputs with other strides."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.net.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.net(x)
        return {
            "same": x,
            "view": x[2:4].t(),
            "weight": self.net.scale,
            "constant": torch.arange(6) + 1,
            "transposed": y.transpose(0, 1),
            "part": y[:, :8],
            "twice": (y, y),
            "expanded": y[:, :1].expand(16, 9),
            "none": None,
        }


def test_outputs_lie_in_memory_as_those_of_the_original(tmp_path: Path) -> None:
    model = Shapes().eval()
    fast = optimized(model, (X,), tmp_path)
    for x in (X.clone(), X.clone() + 1):
        found, expected = fast(x), model(x)
        assert list(found) == list(expected) and found["same"] is x
        assert found["weight"] is model.net.scale and found["twice"][0] is found["twice"][1]
        assert found["view"].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        for name in ("view", "constant", "transposed", "part", "expanded"):
            assert found[name].stride() == expected[name].stride(), name
            torch.testing.assert_close(found[name], expected[name], atol=1e-4, rtol=1e-4)
        found["constant"].add_(7)
        found["transposed"].add_(7)
    last = X.to(memory_format=torch.contiguous_format).t().contiguous().t()  # other strides
    for _ in range(2):
        torch.testing.assert_close(fast(last)["part"], model(last)["part"], atol=1e-4, rtol=1e-4)
