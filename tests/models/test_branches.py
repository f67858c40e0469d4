"""Branches of PyTorch programs: `torch.cond`."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tlmd.data.model_spec import ModelSpec
from tlmd.lowering import acceptance
from tlmd.space.hardware import target as targets


class Branches(nn.Module):
    """One of two layers, by the sum of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branches = (lambda x: self.first(x).relu(), lambda x: self.second(x) * 2)
        return torch.as_tensor(torch.cond(x.sum() > 0, *branches, (x,)))


def branches() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return Branches().eval(), (torch.randn(4, 8),)


def test_both_branches_are_imported() -> None:
    spec = ModelSpec("tests.models.test_branches:branches")
    accepted = acceptance.accept(spec, targets.resolve("native", 1))
    assert accepted.error is not None and accepted.error < 1e-5
    names = {task.name for task in accepted.tasks}
    assert any("relu" in name for name in names) and len(names) > 2
    (model,) = accepted.models
    x = np.ones((4, 8), np.float32)
    assert model.source.reference is not None
    assert not np.allclose(model.source.reference(x)[0], model.source.reference(-x)[0])
