"""Each thread makes the matrix unit ready once, and a program of one block starts no threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm_ffi
from torch import nn
from tvm import tirx

from tests.support.alternative_programs import built, direct_outputs, run
from tlmd.alternatives.amx import amx_code
from tlmd.alternatives.amx.amx_calls import THREADS
from tlmd.alternatives.amx.declaration import AMX_PARTS
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import Task
from tlmd.lowering.alternatives import with_alternatives
from tlmd.lowering.preparation import lower_source
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import has_amx, resolve

INFO = resolve("native", 2)
WITH_UNIT = resolve('{"kind": "llvm", "mcpu": "sapphirerapids"}', 2)
needs_amx = pytest.mark.skipif(not has_amx(INFO), reason="this CPU has no matrix unit")


def product(rows: int, columns: int) -> Task:
    """A GEMM whose sums need several calls."""
    torch.manual_seed(0)
    source = from_module("network", nn.Linear(2080, columns).eval(), (torch.randn(rows, 2080),))
    lowered = lower_source(ModelSpec("network"), source, WITH_UNIT)
    tasks = with_alternatives(lowered.tasks, False)
    (found,) = (task for task in tasks if task.alternative == AMX_PARTS.name)
    return found


def found_in(function: Any, kind: Any) -> list[Any]:
    nodes: list[Any] = []
    tvm_ffi.structural_walk(function.body, (kind, nodes.append))
    return nodes


@pytest.mark.parametrize(("rows", "columns", "is_shared"), [(64, 96, True), (32, 32, False)])
@pytest.mark.slow
def test_a_thread_makes_the_unit_ready_once(rows: int, columns: int, is_shared: bool) -> None:
    """And a program of one block starts no threads."""
    for seed in range(4):
        function = built(product(rows, columns), seed % 2, seed)["main"]
        launches = [one for one in found_in(function, tirx.AttrStmt) if one.attr_key == THREADS]
        loops = found_in(function, tirx.For)
        (loop,) = (one for one in loops if amx_code.NAME in str(one.annotations))
        assert len(launches) == (int(loop.extent) > 1)
        assert is_shared or not launches
        around = next(
            one for one in found_in(function, tirx.SeqStmt) if any(s.same_as(loop) for s in one.seq)
        )
        place = next(at for at, one in enumerate(around.seq) if one.same_as(loop))
        names = [str(around.seq[place + step].value.args[0].value) for step in (-1, 1)]
        assert names == [amx_code.BEGIN, amx_code.END]


@needs_amx
@pytest.mark.parametrize(("rows", "columns"), [(64, 96), (32, 32)])
def test_several_threads_add_each_product_once(rows: int, columns: int) -> None:
    task = product(rows, columns)
    given, want = direct_outputs(task, INFO)
    for seed in range(4):
        program = built(task, seed % 2, seed)
        for _ in range(3):
            assert np.abs(run(program, given, INFO) - want).max() < 1e-4 * np.abs(want).max()
