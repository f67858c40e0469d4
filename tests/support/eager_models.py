"""What the tests share that compare an optimised model with its original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import tlmd
from benchmarks.coverage import behaviour_cases
from benchmarks.coverage.behaviour_cases import X
from tlmd.integrations.optimized_model import OptimizedModel

__all__ = ["Net", "X", "optimized"]


class Net(behaviour_cases.Net):
    """That of the benchmark, with an attribute and a method that others use."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"name": "net"}

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        """A method that calls the model."""
        return torch.as_tensor(self(self(x)))


def optimized(model: nn.Module, example: Any, state: Path) -> OptimizedModel:
    fast = tlmd.optimize(model, example, state_dir=state, background=False)
    assert fast.reason == "", "a library must run, or the test shows nothing"
    return fast
