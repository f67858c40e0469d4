"""Declarations of alternatives: complete, and all that a new one needs."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from numpy.typing import NDArray
from torch import nn
from tvm import relax, te

from tests.support.alternative_programs import check_random_candidates, native_by_vectors
from tests.support.measured_tasks import measured
from tlmd.alternatives import catalogue
from tlmd.alternatives.alternative import DIRECT, Alternative, DirectProgram, Implementation
from tlmd.alternatives.amx.amx_code import PARTS
from tlmd.alternatives.contraction import shape_of, with_constants
from tlmd.alternatives.expressions import axis, long
from tlmd.alternatives.scheduling import Sketch, StageSchedule
from tlmd.data.model_spec import INT8, ModelSpec
from tlmd.export.result import Result
from tlmd.lowering import lowering
from tlmd.lowering.alternatives import substitute, with_alternatives
from tlmd.lowering.preparation import LoweredModel, lower_source
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import has_features, resolve, tvm_target
from tlmd.space.space import TaskSpace

INFO = native_by_vectors()
EVERYTHING = resolve('{"kind": "llvm", "mcpu": "sapphirerapids"}', 1)
PRODUCTS = "transposed_products"


def test_names_are_unique_and_those_of_stored_records() -> None:
    assert [one.name for one in catalogue.ALTERNATIVES] == [
        *("packed", "paired_bf16", "packed_int8", "packed_bf16", "bf16"),
        *("amx_bf16", "amx_bf16x3", "amx_int8", "winograd2", "winograd4", "strassen2"),
    ]
    direct = catalogue.declared(DIRECT)
    assert direct.exact and not direct.multiplies and not direct.by_matrix_unit


@pytest.mark.parametrize("one", catalogue.ALTERNATIVES, ids=lambda one: one.name)
def test_each_declaration_is_complete(one: Alternative) -> None:
    assert re.fullmatch("[a-z0-9_]+", one.name)  # a part of the names of functions
    assert one.multiplies in ("", "bfloat16", "int8", PARTS)
    assert bool(one.multiplies) == bool(one.needs) and has_features(EVERYTHING, one.needs)
    assert one.sketches
    others = [other.sketches.get(name) for other in catalogue.ALTERNATIVES for name in one.sketches]
    assert set(others) <= {None, *one.sketches.values()}  # no block of theirs is another's
    is_prefetched = set(one.sketches) <= set(catalogue.products())
    assert is_prefetched == (one.weights is not None and not one.by_matrix_unit)


def test_only_weights_of_their_own_are_made() -> None:
    for name in (DIRECT, "bf16", "unknown"):
        with pytest.raises(ValueError, match="no alternative with weights of its own"):
            catalogue.make_weights(name, np.zeros((2, 2)), (4,))


def find(direct: DirectProgram) -> Implementation | None:
    """A GEMM with transposed weights, which is said to be little work."""
    contraction = with_constants(direct.module["main"], direct.constants)
    if contraction is None:
        return None
    (rows, columns), depth = shape_of(contraction.output), shape_of(contraction.weights.source)[0]
    data = te.placeholder(long((rows, depth)), name="data")
    weights = te.placeholder(long((columns, depth)), name="weights")
    k = axis(depth, "k")
    products = te.compute(
        long((rows, columns)),
        lambda i, j: te.sum(data[i, k] * weights[j, k], axis=k),
        name=PRODUCTS,
    )
    stages = te.create_prim_func([data, weights, products])
    module = contraction.replaced(direct.module, stages)
    return Implementation(module, direct.flops, direct.work / 2)


def transposed(weights: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    assert weights.T.shape == shape
    return np.ascontiguousarray(weights.T)


def sketches(_program: StageSchedule) -> list[Sketch]:
    def tiled(program: StageSchedule) -> None:
        rows, _, _ = program.schedule.get_loops(program.block(PRODUCTS))
        program.tile(rows, 2, most=4)

    return [tiled]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> LoweredModel:
    """A model for whose GEMM an alternative is declared here only."""
    here = Alternative("transposed", find, transposed, {PRODUCTS: sketches}, exact=False)
    monkeypatch.setattr(catalogue, "ALTERNATIVES", (*catalogue.ALTERNATIVES, here))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(48, 35), nn.ReLU()).eval()
    return lower_source(
        ModelSpec("network"), from_module("network", net, (torch.randn(12, 48),)), INFO
    )


def test_what_is_declared_is_tried_scheduled_and_transformed(model: LoweredModel) -> None:
    first, *_ = with_alternatives(model.tasks)
    assert first.alternative == "transposed"
    assert len(TaskSpace(first).sketches) == 1
    check_random_candidates(first, Random(0))
    strict = with_alternatives(model.tasks, strict_numerics=True)
    assert {task.alternative for task in strict} <= {DIRECT, "packed"}


def test_what_is_declared_is_exported(model: LoweredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = with_alternatives(model.tasks)
    seconds = {"transposed": 1e-6}
    states = [measured(task, seconds.get(task.alternative, 1e-5)) for task in tasks]
    result = Result("network", INFO, 0, states)
    chosen = result.alternatives()
    assert [task.alternative for task in chosen.values()] == ["transposed"]
    assert result.precision == "fp32"
    module = substitute(model.lowered, chosen)
    compiled = lowering.compile_model(module, tvm_target(INFO)).executable
    inputs = model.source.random_inputs(0)
    got = relax.VirtualMachine(compiled, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    assert model.source.reference is not None
    (want,) = model.source.reference(*inputs)
    np.testing.assert_allclose(got[0].numpy(), want, atol=1e-5)
    *others, here = catalogue.ALTERNATIVES
    short = replace(here, multiplies="int8", needs=("amx-tile",))
    monkeypatch.setattr(catalogue, "ALTERNATIVES", (*others, short))
    assert result.precision == INT8 and catalogue.declared("transposed").by_matrix_unit
    assert all(task.alternative != "transposed" for task in with_alternatives(model.tasks))
