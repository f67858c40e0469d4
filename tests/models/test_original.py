"""The original of a model alone: as `load` gives it, without an import into TVM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support import small_network
from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec
from tlmd.models.frontends import load, original


class Unsupported(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(torch.special.bessel_j0(x))


def unsupported() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Unsupported(), (torch.randn(4),)


def test_it_computes_the_same(tmp_path: Path) -> None:
    onnx_file = small_network.save_onnx(tmp_path / "net.onnx")
    program = small_network.save_pt2(tmp_path / "net.pt2")
    specs = [ModelSpec(str(onnx_file)), ModelSpec(str(program)), ModelSpec("gemm", ((2, 16),))]
    for spec in specs:
        model = load(spec)
        reference, module = original(spec)
        inputs = model.random_inputs(1)
        assert reference is not None and model.reference is not None
        for one, two in zip(reference(*inputs), model.reference(*inputs), strict=True):
            assert np.array_equal(one, two)
        assert (module is None) == (model.torch_module is None)


def test_it_is_not_imported_into_tvm() -> None:
    spec = ModelSpec(f"{__name__}:unsupported")
    with pytest.raises(BadInput, match="bessel_j0"):
        load(spec)
    reference, _ = original(spec)
    values = np.linspace(0, 1, 4, dtype=np.float32)
    assert reference is not None
    np.testing.assert_allclose(reference(values)[0], 1 - values**2 / 4 + values**4 / 64, atol=1e-3)


def test_it_has_the_same_mistakes(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        original(ModelSpec(str(tmp_path / "none.onnx")))
    program = small_network.save_pt2(tmp_path / "net.pt2")
    with pytest.raises(BadInput, match="has its own weights"):
        original(ModelSpec(str(program), weights="other.safetensors"))
