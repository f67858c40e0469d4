"""Prefetches: they are of the weights that are read next, and change nothing that is computed."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer

from tests.support.alternative_programs import direct_outputs, run
from tlmd.alternatives.expressions import substituted
from tlmd.alternatives.prefetch import with_prefetches
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import Task
from tlmd.lowering.alternatives import with_alternatives
from tlmd.lowering.preparation import lower_source
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import resolve, tvm_target, vector_unit
from tlmd.space.space import TaskSpace

INFO = resolve("native")
LANES = vector_unit(tvm_target(INFO)).lanes
PREFETCH = "tlmd_prefetch"
WIDE = 384  # large enough for Strassen's algorithm


class Network(nn.Module):
    """A GEMM of many rows, one of few rows and columns, a convolution of 3 x 3, and patches."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDE, WIDE)
        self.small = nn.Linear(24, 12 * LANES)
        self.convolution = nn.Conv2d(2 * LANES, 4 * LANES, 3, padding=1)
        self.patches = nn.Conv2d(3, 8 * LANES, 4, stride=4)

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, image: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        wide, small = torch.relu(self.wide(x)), self.small(y)
        return wide, small, self.convolution(z), self.patches(image)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    torch.manual_seed(0)
    inputs = torch.randn(437, WIDE), torch.randn(24, 24), torch.randn(1, 2 * LANES, 16, 16)
    source = from_module("network", Network().eval(), (*inputs, torch.randn(1, 3, 32, 32)))
    found = with_alternatives(lower_source(ModelSpec("network"), source, INFO).tasks)
    return [task for task in found if task.alternative]


def _candidates(task: Task, count: int) -> list[Any]:
    space, rng = TaskSpace(task), Random(0)
    drawn = (space.random(rng, index % len(space.sketches)) for index in range(count))
    return [space.finish(candidate).mod for candidate in drawn]


@pytest.mark.slow
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


def test_a_loop_of_one_turn_inside_of_the_prefetches_is_not_used(tasks: list[Task]) -> None:
    (patches,) = (
        task
        for task in tasks
        if task.alternative == "packed" and "conv" in task.name and _channels(task) == 3
    )
    arguments, _ = direct_outputs(patches, INFO)
    found = [module for module in _candidates(patches, 24) if _has_a_single_turn(module["main"])]
    made = [with_prefetches(module) for module in found]
    fetching = [module for module in made if PREFETCH in module.script()]
    assert fetching
    want = run(found[0], arguments, INFO).copy()
    for module in fetching[:3]:
        np.testing.assert_allclose(run(module, arguments, INFO), want, rtol=1e-4, atol=1e-4)


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


def _channels(task: Task) -> int:
    """Of the data, which is the first parameter."""
    return int(tvm.ir.load_json(task.module)["main"].params[0].ty.shape[-1])


def _has_a_single_turn(function: Any) -> bool:
    """Whether a loop that is not unrolled has one turn."""
    loops: list[Any] = []
    tvm_ffi.structural_walk(function.body, (tirx.For, loops.append), order="pre")
    return any(int(loop.extent) == 1 and loop.kind == tirx.ForKind.SERIAL for loop in loops)


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
