"""1-D convolutions as 2-D ones of one row: equal numbers, and programs that have alternatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax

from tests.support.alternative_programs import native_by_vectors
from tlmd.lowering import lowering
from tlmd.lowering.alternatives import with_alternatives
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import tvm_target

INFO = native_by_vectors()


class Residual(nn.Module):
    """A block as speech networks have them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide = nn.Conv1d(channels, channels, 5, padding=4, dilation=2, groups=channels)
        self.narrow = nn.Conv1d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = x + self.narrow(torch.relu(self.wide(x)))
        return added


def _result(network: nn.Module, sound: torch.Tensor) -> tuple[list[str], np.ndarray]:  # type: ignore[type-arg]
    """The names of the tasks, and what the lowered model computes."""
    source = from_module("network", network, (sound,))
    lowered = lowering.lower(source.module, tvm_target(INFO))
    compiled = lowering.compile_model(lowered, tvm_target(INFO))
    machine = relax.VirtualMachine(compiled.executable, tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(sound.numpy()))
    got = got[0] if not hasattr(got, "numpy") else got
    tasks = with_alternatives(lowering.extract(lowered, INFO))
    return [task.name for task in tasks], got.numpy()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(16, 32, 3, padding=1),
        nn.Conv1d(16, 32, 10, stride=5, bias=False),
        nn.Conv1d(16, 16, 5, padding="same", dilation=3),
        nn.Conv1d(16, 64, 3, groups=4),
        nn.Conv1d(16, 16, 4, padding=2, groups=16),
    ],
)
def test_layers_are_computed_rightly(layer: nn.Conv1d) -> None:
    torch.manual_seed(0)
    sound = torch.randn(2, 16, 50)
    names, got = _result(layer.eval(), sound)
    np.testing.assert_allclose(got, layer(sound).detach().numpy(), rtol=1e-4, atol=1e-4)
    assert not any("conv1d" in name for name in names)


def test_what_follows_is_fused_and_weights_are_packed() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv1d(80, 64, 3, padding=1),
        nn.GELU(),
        nn.Conv1d(64, 96, 3, 2, 1),
        nn.GELU(),
        Residual(96),
    ).eval()
    sound = torch.randn(2, 80, 60)
    names, got = _result(network, sound)
    np.testing.assert_allclose(got, network(sound).detach().numpy(), rtol=1e-4, atol=1e-4)
    direct = [name for name in names if "conv2d" in name and not name.endswith("packed")]
    assert len(direct) == 4 and sum(name.endswith("packed") for name in names) >= 3
    # What is left are the moves of the network's input and output.
    assert all("conv2d" in name or "transpose" in name for name in names)


def test_operands_that_are_only_reshaped_alike_keep_their_shapes() -> None:
    class Outer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(6, 1) * x.reshape(1, 6) + torch.arange(6.0).reshape(1, 6)

    data = torch.randn(2, 3)
    _, got = _result(Outer(), data)
    np.testing.assert_allclose(got, Outer()(data).numpy(), rtol=1e-6)
