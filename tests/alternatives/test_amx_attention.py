"""Attention for the CPU's matrix unit: its programs anywhere, and where there is one."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn

from tests.support.alternative_programs import (
    built,
    check_random_candidates,
    direct_outputs,
    run,
)
from tlmd.alternatives.amx import amx_attention
from tlmd.alternatives.amx.declaration import AMX_BF16, AMX_PARTS
from tlmd.alternatives.attention import attention
from tlmd.alternatives.catalogue import declared
from tlmd.data.model_spec import BF16, FP32, ModelSpec
from tlmd.data.types import Task
from tlmd.lowering.alternatives import direct_program, with_alternatives
from tlmd.lowering.preparation import lower_source
from tlmd.measure.server.verify import tolerance
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import has_amx, resolve
from tlmd.space.space import TaskSpace

INFO = resolve("native", 1)
WITH_UNIT = resolve('{"kind": "llvm", "mcpu": "sapphirerapids"}', 1)
needs_amx = pytest.mark.skipif(not has_amx(INFO), reason="this CPU has no matrix unit")
KINDS = ["plain", "mask", "causal"]


class Layer(nn.Module):
    """Attention of two images, whose heads of keys may be fewer than those of queries."""

    mask: torch.Tensor

    def __init__(self, kind: str, rows: int, keys: int, shared: int, depth: int) -> None:
        super().__init__()
        self.kind, self.depth, self.shared = kind, depth, shared
        self.query = nn.Linear(8, 2 * depth)
        self.key, self.value = (nn.Linear(8, 2 // shared * depth) for _ in range(2))
        mask = torch.randn(rows, keys)
        mask[2] = -torch.inf  # a row without any key: PyTorch's function gives 0
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = (self.query(x), self.key(y), self.value(y))
        q, k, v = (p.view(*p.shape[:2], -1, self.depth).transpose(1, 2) for p in parts)
        k, v = (p.repeat_interleave(self.shared, 1) if self.shared > 1 else p for p in (k, v))
        mask = self.mask if self.kind == "mask" else None
        out = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.kind == "causal"
        )
        return out.transpose(1, 2).flatten(2)


def lowered(
    kind: str = "plain",
    rows: int = 43,
    keys: int = 43,
    shared: int = 1,
    depth: int = 32,
    precision: str = FP32,
) -> list[Task]:
    torch.manual_seed(0)
    layer = Layer(kind, rows, keys, shared, depth).eval()
    inputs = torch.randn(2, rows, 8), torch.randn(2, keys, 8)
    source = from_module("network", layer, inputs)
    return lower_source(ModelSpec("network", precision=precision), source, WITH_UNIT).tasks


def of_unit(precision: str = FP32, **given: Any) -> list[Task]:
    tasks = with_alternatives(lowered(**given, precision=precision), False, precision)
    names = AMX_BF16.name, AMX_PARTS.name
    return [one for one in tasks if one.name.startswith("attention") and one.alternative in names]


@pytest.mark.parametrize("precision", [FP32, BF16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_unscheduled_programs_are_right_on_any_cpu(kind: str, precision: str) -> None:
    (task,) = of_unit(precision, kind=kind, shared=2 if kind == "causal" else 1)
    given_arrays, want = direct_outputs(task, INFO)
    got = run(tvm.ir.load_json(task.module), given_arrays, INFO)
    assert np.isfinite(want).all()
    limit = tolerance("float32", 43, declared(task.alternative).multiplies) * np.sqrt(
        (want**2).mean()
    )
    assert 0 < np.abs(got - want).max() < limit


@pytest.mark.slow
def test_strict_numerics_and_few_rows_leave_it_out() -> None:
    tasks = lowered()
    assert all(one.alternative != AMX_PARTS.name for one in with_alternatives(tasks, True))
    (few,) = (one for one in lowered(rows=7) if one.attention)
    assert AMX_PARTS.find(direct_program(few)) is None
    assert not of_unit(depth=16)


@needs_amx
@pytest.mark.parametrize("kind", KINDS)
def test_candidates_are_right_and_can_be_said(kind: str) -> None:
    (task,) = of_unit(kind=kind, shared=2 if kind == "plain" else 1, depth=64)
    assert len(TaskSpace(task).sketches) == 1
    check_random_candidates(task, Random(0), count=2)


@needs_amx
def test_whole_sums_begin_with_zeros_in_registers() -> None:
    """All but that of many keys, which needs several calls."""
    for keys, is_whole in ((43, True), (1700, False)):
        (task,) = of_unit(keys=keys)
        final = built(task, sketch=0)
        text = final.script(show_meta=False)
        assert text.count('T.call_extern("int32", "tlmd_amx_bf16') == 2
        assert f"{attention.SCORES}_init" not in text and amx_attention.KEYS in text
        assert (f"{attention.CONTEXT}_init" not in text) == is_whole
        given_arrays, want = direct_outputs(task, INFO)
        assert np.abs(run(final, given_arrays, INFO) - want).max() < 1e-4 * np.abs(want).max()
