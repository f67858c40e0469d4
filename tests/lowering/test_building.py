"""A model that several processes have compiled is the model that one compiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from torch import nn

from tlmd.lowering import comparison, lowering
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.processes import forks
from tlmd.space.hardware.target import resolve, tvm_target

TARGET = tvm_target(resolve("native"))


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "processes", lambda: 2)


def _network() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for wide in (8, 16, 24, 32):
        layers += [nn.LazyConv2d(wide, 3), nn.ReLU(), nn.LazyConv2d(8, 1), nn.Tanh()]
    network = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10))
    network(torch.zeros(1, 3, 16, 16))
    return network.eval()


def test_its_outputs_and_its_library(forking: None, tmp_path: Path) -> None:
    network, image = _network(), torch.randn(1, 3, 16, 16)
    source = from_module("network", network, (image,))
    compiled = lowering.compile_model(lowering.lower(source.module, TARGET), TARGET, to_link=True)
    assert compiled.functions >= 6
    kinds = [module.kind for module in compiled.executable.mod.imports[0].imports]
    assert kinds and set(kinds) == {"static_library"}
    compiled.executable.export_library(str(tmp_path / "model.so"))
    library = tvm.runtime.load_module(str(tmp_path / "model.so"))
    for program in (compiled.executable, library):
        (found,) = comparison.runner(program)([image.numpy()])
        np.testing.assert_allclose(found, network(image).detach(), rtol=1e-4, atol=1e-5)


def test_errors_are_those_of_tvm(forking: None, monkeypatch: pytest.MonkeyPatch) -> None:
    source = from_module("network", _network(), (torch.zeros(1, 3, 16, 16),))
    lowered = lowering.lower(source.module, TARGET)
    real = tvm.tirx.build

    def failing(module: tvm.IRModule, **options: object) -> object:
        if any("conv2d" in str(var.name_hint) for var in module.functions):
            raise ValueError("no such instruction")
        return real(module, **options)

    monkeypatch.setattr(tvm.tirx, "build", failing)
    with pytest.raises(ValueError, match="no such instruction"):
        lowering.compile_model(lowered, TARGET, to_link=True)
