"""Prefetches: they are of the weights that are read next, and change nothing that is computed."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer

from tests.alternative_programs import direct_outputs, run
from tlmd.alternatives.contraction import substituted
from tlmd.alternatives.prefetch import with_prefetches
from tlmd.model_spec import ModelSpec
from tlmd.space.space import TaskSpace
from tlmd.space.target import resolve, tvm_target, vector_unit
from tlmd.types import Task
from tlmd.workloads.alternatives import with_alternatives
from tlmd.workloads.preparation import lower_source
from tlmd.workloads.torch_frontend import from_module

INFO = resolve("native")
LANES = vector_unit(tvm_target(INFO)).lanes
PREFETCH = "tlmd_prefetch"
WIDE = 384  # large enough for Strassen's algorithm


class Network(nn.Module):
    """A GEMM of many rows, one of few rows and columns, and a convolution of 3 x 3."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDE, WIDE)
        self.small = nn.Linear(24, 12 * LANES)
        self.convolution = nn.Conv2d(2 * LANES, 4 * LANES, 3, padding=1)

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.relu(self.wide(x)), self.small(y), self.convolution(z)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    torch.manual_seed(0)
    inputs = torch.randn(437, WIDE), torch.randn(24, 24), torch.randn(1, 2 * LANES, 16, 16)
    source = from_module("network", Network().eval(), inputs)
    found = with_alternatives(lower_source(ModelSpec("network"), source, INFO).tasks)
    return [task for task in found if task.alternative]


def _candidates(task: Task, count: int) -> list[Any]:
    space, rng = TaskSpace(task), Random(0)
    drawn = (space.random(rng, index % len(space.sketches)) for index in range(count))
    return [space.finish(candidate).mod for candidate in drawn]


def test_the_outputs_stay_the_same(tasks: list[Task]) -> None:
    kinds = set()
    for task in tasks:
        arguments, _ = direct_outputs(task, INFO)
        for module in _candidates(task, 4):
            made = with_prefetches(module)
            if PREFETCH in made.script():
                kinds.add(task.alternative)
                want = run(module, arguments, INFO).copy()
                assert (run(made, arguments, INFO) == want).all()
    assert {"packed", "strassen2", "winograd4"} <= kinds


def test_a_direct_program_is_left_as_it_is(tasks: list[Task]) -> None:
    module = tvm.ir.load_json(tasks[0].direct)
    assert tvm_ffi.structural_equal(with_prefetches(module), module)


def test_all_weights_but_the_first_panel_are_fetched(tasks: list[Task]) -> None:
    small = min((t for t in tasks if t.alternative == "packed"), key=lambda task: task.flops)
    checked = 0
    for module in _candidates(small, 12):
        made = with_prefetches(module)
        if PREFETCH not in made.script():
            continue
        read, fetched = _places(made["main"])
        assert fetched <= read  # never outside of the weights
        panels = {place[0] for place in read}
        assert {place for place in read if place[0] > min(panels)} <= fetched
        checked += 1
    assert checked >= 3


def _places(function: Any) -> tuple[set[Any], set[Any]]:
    """The first indices of the vectors that are read and of those that are prefetched."""
    loops: list[Any] = []
    reads: list[Any] = []
    fetches: list[Any] = []

    def visit_block(realize: Any) -> None:
        if realize.block.name_hint == "packed_products_update":
            bound = zip(realize.block.iter_vars, realize.iter_values, strict=True)
            values = [(one.var, value) for one, value in bound]
            sides = realize.block.reads[-1].region
            reads.append([substituted(side.min, values) for side in sides])

    def visit_call(call: Any) -> None:
        if getattr(call.op, "name", "") == "tirx.address_of":
            fetches.append(call.args[0])

    callbacks = [(tirx.For, loops.append), (SBlockRealize, visit_block), (tvm.ir.Call, visit_call)]
    tvm_ffi.structural_walk(function.body, callbacks, order="pre")
    read = set().union(*(_values(at, loops) for at in reads))
    fetched = set().union(*(_values(load.indices, loops) for load in fetches))
    return read, fetched


def _values(indices: Any, loops: list[Any]) -> set[tuple[int, ...]]:
    """What indices are for all values of the loops; the first elements of vectors."""
    used: list[Any] = []
    for index in indices:
        tvm_ffi.structural_walk(index, (tirx.Var, used.append))
    inside = [loop for loop in loops if any(loop.loop_var.same_as(one) for one in used)]
    ranges = [
        [0] if loop.kind == tirx.ForKind.VECTORIZED else range(int(loop.extent)) for loop in inside
    ]
    simplify = Analyzer().simplify
    found = set()
    for values in itertools.product(*ranges):
        bound = [
            (loop.loop_var, tirx.const(value, "int64"))
            for loop, value in zip(inside, values, strict=True)
        ]
        found.add(tuple(int(simplify(substituted(index, bound))) for index in indices))
    return found
