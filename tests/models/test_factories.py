"""Models from Python code: what two processes make of one name is the same model."""

from __future__ import annotations

import torch

from tlmd.data.model_spec import ModelSpec
from tlmd.models import factories


def test_random_weights_are_the_same_each_time() -> None:
    """The processes that compare outputs make the model anew."""
    state = torch.get_rng_state()
    first, again = (factories.make(ModelSpec(f"{__name__}:network"))[0] for _ in range(2))
    assert torch.equal(first.weight, again.weight)
    assert torch.equal(torch.get_rng_state(), state)


def network() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return torch.nn.Linear(3, 3), (torch.randn(2, 3),)
