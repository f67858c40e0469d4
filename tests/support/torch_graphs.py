"""What the tests of graphs in PyTorch share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tlmd.export.program_source import ProgramSource
from tlmd.integrations import hot_swap, torch_backend


def use_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let libraries be put in use, however long they take, and be made of TVM's default programs.

    Writing programs would take most of a test's time.
    """

    def times(runs: Sequence[Any], example: Sequence[Any]) -> list[float]:
        for run in runs:
            run(example)
        return [2.0, 1.0]

    monkeypatch.setattr(hot_swap, "shortest_times", times)
    monkeypatch.setattr(ProgramSource, "propose", lambda self, *task: None)


class Flat(nn.Module):
    """A model with a flat tuple of outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.model(*tensors)
        return found if isinstance(found, tuple) else (found,)


class Graphs:
    """The backend, which keeps the functions of its graphs."""

    def __init__(self, state_dir: Path) -> None:
        self._options = {"state_dir": str(state_dir), "background": False}
        self._graphs: list[Any] = []

    def __call__(self, graph: Any, example: Sequence[Any]) -> Any:
        found = torch_backend.backend(graph, example, options=self._options)
        assert isinstance(found, torch_backend._Graph)
        self._graphs.append(found)
        return found

    @property
    def functions(self) -> list[Any]:
        """What each graph has compiled."""
        return [graph.functions for graph in self._graphs]
