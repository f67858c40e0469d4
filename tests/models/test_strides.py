"""Views of tensors whose strides a decomposition or a library changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tlmd.models.pytorch import torch_frontend


class Heads(nn.Module):
    """Attention as GPT-2 writes it: its output is looked at as rows without a copy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(*x.shape[:2], 4, 8).transpose(1, 2) for part in torch.chunk(x, 3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(*x.shape[:2], 32).contiguous()
        return y.view(-1, y.size(-1)) * 2.0


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_output_of_attention_may_be_viewed(batch: int) -> None:
    x = torch.randn(batch, 9, 96)
    model = Heads().eval()
    source = torch_frontend.from_module("heads", model, (x,))
    assert source.reference is not None
    (expected,) = source.reference(x.numpy())
    np.testing.assert_allclose(expected, model(x).numpy())
    assert "main" in [variable.name_hint for variable in source.module.get_global_vars()]
