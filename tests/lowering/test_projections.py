"""Query, key and value of one input are one product, whose columns attention reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn

from tests.support.lowered import INFO, error_of, lowered_module, outputs_of, task_names
from tlmd.space.hardware.target import tvm_target, vector_unit

LANES = vector_unit(tvm_target(INFO)).lanes
sdpa = nn.functional.scaled_dot_product_attention


class Together(nn.Module):
    """Query, key and value of one input; `kind` says how they lie in the product of it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.products = nn.Linear(8, 6 * LANES)
        self.parts = nn.ModuleList(nn.Linear(8, 2 * LANES, bias=i != 1) for i in range(3))
        self.layer = nn.MultiheadAttention(2 * LANES, 2, batch_first=True).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images, rows, _ = x.shape
        if self.kind == "torch":
            wide = self.parts[0](x)
            found: torch.Tensor = self.layer(wide, wide, wide, need_weights=False)[0]
            return found
        if self.kind == "apart":
            q, k, v = (part(x).view(images, rows, 2, LANES).transpose(1, 2) for part in self.parts)
        elif self.kind == "thirds":
            thirds = self.products(x).chunk(3, -1)
            q, k, v = (t.view(images, rows, 2, LANES).transpose(1, 2) for t in thirds)
        elif self.kind == "blocks":
            blocks = self.products(x).reshape(images, rows, 3, 2, LANES).permute(2, 0, 3, 1, 4)
            q, k, v = blocks.unbind(0)
        else:
            heads = self.products(x).view(images, rows, 2, 3, LANES)
            q, k, v = (heads[:, :, :, i].transpose(1, 2) for i in range(3))
        return sdpa(q * 0.9, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("kind", ["apart", "thirds", "blocks", "every third head", "torch"])
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.slow
def test_attention_reads_the_columns_of_one_product(kind: str, images: int) -> None:
    torch.manual_seed(0)
    model, source = lowered_module(Together(kind).eval(), (torch.randn(images, 7, 8),))
    (task,) = (task for task in model.tasks if task.name == "attention")
    product, _ = (p.ty.shape for p in tvm.ir.load_json(task.module)["main"].params)
    assert [int(extent) for extent in product[2:]] == [6, LANES]
    moved = [name for name in task_names(model) if "transpose" in name]
    # The rows of PyTorch's layer are first, its images second.
    assert len(moved) == (3 if kind == "torch" and images > 1 else 0)
    assert not any(
        word in name for name in task_names(model) for word in ("slice", "take", "split")
    )
    assert error_of(model, source) < 1e-5


class Cached(Together):
    """Returns its keys, too, as models do that keep them for the next word."""

    def forward(self, x: torch.Tensor) -> Any:
        q, k, v = (part(x).view(*x.shape[:2], 2, LANES).transpose(1, 2) for part in self.parts)
        return sdpa(q, k, v), k


class Rotated(Together):
    """Turns query and key by an angle for each row, as LLaMA does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).view(*x.shape[:2], 2, LANES).transpose(1, 2) for part in self.parts)
        angles = torch.arange(x.shape[1])[:, None] * torch.linspace(1, 0.1, LANES)
        return sdpa(_turned(q, angles), _turned(k, angles), v).transpose(1, 2).flatten(2)


def _turned(part: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    low, high = part.chunk(2, -1)
    return part * angles.cos() + torch.cat((-high, low), -1) * angles.sin()


@pytest.mark.slow
def test_rotated_queries_and_keys_are_columns_of_one_product_too() -> None:
    torch.manual_seed(0)
    model, source = lowered_module(Rotated("apart").eval(), (torch.randn(2, 7, 8),))
    assert sum("matmul" in name for name in task_names(model)) == 1
    assert not any(name in ("strided_slice", "split") for name in task_names(model))
    assert error_of(model, source) < 1e-5


@pytest.mark.slow
def test_projections_with_another_use_stay_apart() -> None:
    torch.manual_seed(0)
    model, source = lowered_module(Cached("apart").eval(), (torch.randn(1, 7, 8),))
    (task,) = (task for task in model.tasks if task.name == "attention")
    shapes = [p.ty.shape for p in tvm.ir.load_json(task.module)["main"].params]
    assert sorted(int(shape[2]) for shape in shapes[:-1]) == [2, 4]  # keys; query and value
    for got, want in outputs_of(model, source):
        assert np.abs(got - want).max() < 1e-5
