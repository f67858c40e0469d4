"""What the tests share that compare an optimised model with its original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import tlmd
from tlmd.integrations.optimized_model import OptimizedModel

X = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A network with a keyword, a buffer and an attribute that change what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 256)
        self.second = nn.Linear(256, 64)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.ones(64))
        self.shift = 0.0
        self.config = {"name": "net"}

    def forward(self, x: torch.Tensor, double: bool = False) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x))) * self.scale + self.shift
        return torch.as_tensor(y * 2 if double else y)

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        """A method that calls the model."""
        return torch.as_tensor(self(self(x)))


def optimized(model: nn.Module, example: Any, state: Path) -> OptimizedModel:
    fast = tlmd.optimize(model, example, state_dir=state, background=False)
    assert fast.reason == "", "a library must run, or the test shows nothing"
    return fast
