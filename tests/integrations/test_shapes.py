"""Several shapes: each has a library of its own, and symbolic sizes become numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tlmd
from tests.support.torch_graphs import Graphs
from tlmd.integrations import libraries
from tlmd.integrations.libraries import CompileTime

pytestmark = pytest.mark.slow


class Reshaping(nn.Module):
    """Its shapes depend on those of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 6)
        self.norm = nn.LayerNorm(6)  # its epsilon becomes an input of dynamic graphs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.linear(x))).reshape(x.shape[0] * 2, -1)
        return hidden / x.shape[0] + torch.arange(x.shape[0] * 2).unsqueeze(1)


@pytest.fixture(autouse=True)
def _prepare(small_tlm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests use a small TLM, and compile for each shape at its first call."""
    monkeypatch.setattr(CompileTime, "seconds", property(lambda _: 0.0, lambda _, value: None))
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.mark.usefixtures("libraries_are_faster")
@pytest.mark.parametrize("dynamic", [True, None])
def test_symbolic_sizes_become_numbers(tmp_path: Path, dynamic: bool | None) -> None:
    graphs = Graphs(tmp_path)
    model = Reshaping().eval()
    compiled = torch.compile(model, backend=graphs, dynamic=dynamic)
    with torch.no_grad():
        for rows in (3, 5, 3, 4):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    counts = [len(functions) for functions in graphs.functions]
    assert counts == ([3] if dynamic else [1, 3])
    assert all(not f.reason for functions in graphs.functions for f in functions.values())


@pytest.mark.usefixtures("libraries_are_faster")
def test_after_some_shapes_further_ones_stay_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "MOST", 1)
    graphs = Graphs(tmp_path)
    model = Reshaping().eval()
    compiled = torch.compile(model, backend=graphs, dynamic=True)
    fast = tlmd.optimize(model, torch.randn(3, 8), state_dir=tmp_path, background=False)
    with torch.no_grad():
        for rows in (3, 5):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert len(graphs.functions[0]) == len(fast.functions) == 1
