"""Attention becomes one task, and computes what the model says."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from tvm import te
from tvm.s_tir import Schedule

from tests.support.lowered import INFO, error_of, lowered_module, task_names
from tlmd.alternatives.attention.attention import Attention
from tlmd.alternatives.attention.attention_operand import Operand
from tlmd.alternatives.attention.softmax import power_of_two
from tlmd.alternatives.contraction import DTYPE
from tlmd.alternatives.expressions import long
from tlmd.data.types import Task
from tlmd.language.sentence import decode, encode
from tlmd.lowering import lowering
from tlmd.lowering.identity import task_id
from tlmd.lowering.preparation import LoweredModel
from tlmd.space.apply_trace import InvalidCandidate
from tlmd.space.hardware.target import tvm_target, vector_unit
from tlmd.space.space import TaskSpace

TARGET = tvm_target(INFO)
LANES = vector_unit(TARGET).lanes
sdpa = nn.functional.scaled_dot_product_attention


class Layer(nn.Module):
    """Attention as models write it: `kind` is the way, `heads` of keys may be fewer."""

    mask: torch.Tensor

    def __init__(self, kind: str, heads: int, shared: int) -> None:
        super().__init__()
        self.kind, self.heads, self.shared = kind, heads, shared
        self.query = nn.Linear(8, heads * LANES)
        self.key = nn.Linear(8, heads // shared * LANES)
        self.value = nn.Linear(8, heads // shared * LANES)
        mask = torch.randn(7, 7)
        mask[2] = -torch.inf  # a row without any key: PyTorch's function gives 0
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        parts = (self.query(x), self.key(y), self.value(y))
        q, k, v = (p.view(*p.shape[:2], -1, LANES).transpose(1, 2) for p in parts)
        k, v = (self._repeated(p) for p in (k, v))
        if self.kind == "weights":
            weights = torch.softmax(q @ k.transpose(-1, -2) / 3, -1)
            return weights @ v, weights
        if self.kind == "spelled out":
            scores = torch.matmul(q, k.transpose(-1, -2)) * 0.3
            return torch.softmax(scores, -1) @ v
        mask = self.mask if self.kind == "mask" else None
        out = sdpa(q, k, v, attn_mask=mask, is_causal=self.kind == "causal")
        return out.transpose(1, 2).flatten(2)

    def _repeated(self, part: torch.Tensor) -> torch.Tensor:
        if self.shared == 1:
            return part
        images, heads, keys, depth = part.shape
        wide = part[:, :, None].expand(images, heads, self.shared, keys, depth)
        return wide.reshape(images, heads * self.shared, keys, depth)


def _lowered(layer: Layer, images: int, keys: int) -> tuple[LoweredModel, Any]:
    torch.manual_seed(0)
    return lowered_module(layer.eval(), (torch.randn(images, 7, 8), torch.randn(images, keys, 8)))


@pytest.mark.parametrize(
    ("kind", "images", "heads", "shared", "keys"),
    [
        ("plain", 1, 2, 1, 11),
        ("mask", 2, 2, 1, 7),
        ("causal", 1, 4, 2, 7),
        ("spelled out", 2, 2, 1, 5),
    ],
)
@pytest.mark.slow
def test_attention_is_one_task(kind: str, images: int, heads: int, shared: int, keys: int) -> None:
    model, source = _lowered(Layer(kind, heads, shared), images, keys)
    names = task_names(model)
    assert names.count("attention") == 1
    assert not [name for name in names if "softmax" in name or "matmul2" in name]
    (task,) = (task for task in model.tasks if task.name == "attention")
    shapes = [[int(d) for d in p.ty.shape] for p in tvm.ir.load_json(task.module)["main"].params]
    # Keys and values are columns of one product, and not repeated.
    assert sorted(shapes[1]) == sorted([images, keys, 2 * heads // shared, LANES])
    assert error_of(model, source) < 1e-5


def test_weights_that_the_model_returns_are_not_fused() -> None:
    model, _ = _lowered(Layer("weights", 2, 1), 1, 7)
    assert "attention" not in task_names(model)


sizes = st.integers(1, 40)
many = st.integers(257, 290)  # so many values are copied


@settings(deadline=None, max_examples=8)
@given(
    st.integers(1, 2),
    st.sampled_from([1, 2, 4]),
    sizes,
    sizes | many,
    st.booleans(),
    st.booleans(),
    st.sampled_from([16, 32]),
)
@pytest.mark.slow
def test_random_candidates_are_right_and_can_be_said(
    images: int,
    heads: int,
    rows: int,
    keys: int,
    biased: bool,
    transposed: bool,
    registers: int,
) -> None:
    shape = (images, keys, 1 + heads // 3, LANES)
    orders = ("BLHD", "BHDL" if transposed else "BLHD", "BLHD")
    shapes = ((images, rows, heads, LANES), shape, shape)
    operands = [
        Operand(order, tuple(np.transpose(np.empty(s), _axes(order)).shape))
        for order, s in zip(orders, shapes, strict=True)
    ]
    query, key, value = operands
    attention = Attention(query, key, value, 0.4, False, LANES, registers=registers)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("float32") for s in shapes]
    bias = rng.standard_normal((1, rows, 1)).astype("float32")
    want = _reference(arrays, bias if biased else None)
    given_arrays = [a.transpose(_axes(o)).copy() for a, o in zip(arrays, orders, strict=True)]
    given_arrays += [bias] * biased
    task = _task(attention, [a.shape for a in given_arrays])
    space, random = TaskSpace(task), Random(0)
    (sketch,) = space.sketches
    for _ in range(2):
        candidate = space.random(random)
        try:
            final = space.finish(candidate).mod
        except InvalidCandidate:
            continue
        assert decode(space.sketches, encode(sketch, candidate), task.id) == candidate
        tensors = [tvm.runtime.tensor(a) for a in (*given_arrays, np.zeros_like(want))]
        tvm.compile(final, TARGET).jit()["main"](*tensors)
        assert np.abs(tensors[-1].numpy() - want).max() < 1e-5


@pytest.mark.parametrize("is_safe", [True, False])
def test_masks_of_any_kind(is_safe: bool) -> None:
    """Masked keys weigh nothing; a row of least numbers is even; one without keys is 0 or NaN."""
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((1, 21, 2, LANES)).astype("float32") for _ in range(3)]
    arrays[2][:, -1] = 1e30  # the last key is masked nearly everywhere
    bias = np.zeros((1, 21, 21), "float32")
    bias[:, 1:, -1] = -np.inf
    bias[:, 4:9, ::2] = np.finfo("float32").min
    bias[:, 10, :-1] = np.finfo("float32").min
    bias[:, 11] = -np.inf
    operand = Operand("BLHD", (1, 21, 2, LANES))
    attention = Attention(operand, operand, operand, 0.4, is_safe, LANES)
    space = TaskSpace(_task(attention, [a.shape for a in (*arrays, bias)]))
    with np.errstate(invalid="ignore"):
        want = _reference(arrays, bias)
    want[:, 11] = 0 if is_safe else np.nan
    final = space.finish(space.random(Random(0))).mod
    tensors = [tvm.runtime.tensor(a) for a in (*arrays, bias, np.zeros_like(want))]
    tvm.compile(final, TARGET).jit()["main"](*tensors)
    np.testing.assert_allclose(tensors[-1].numpy(), want, rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-150, 126, width=32), min_size=1, max_size=64))
def test_power_of_two(exponents: list[float]) -> None:
    values = np.array([*exponents, -np.inf, np.nan, 0], "float32")
    place = te.placeholder(long(values.shape), DTYPE, name="x")
    powers = te.compute(long(values.shape), lambda i: power_of_two(place[i]))
    given_values, found = tvm.runtime.tensor(values), tvm.runtime.tensor(np.ones_like(values))
    module = tvm.IRModule({"main": te.create_prim_func([place, powers])})
    tvm.compile(module, TARGET)["main"](given_values, found)
    want = np.exp2(values.astype("float64"))
    np.testing.assert_allclose(found.numpy(), want, rtol=2e-7, atol=1e-38)
    assert found.numpy()[-3] == 0


@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64-v4"])
def test_powers_are_made_vector_by_vector(cpu: str) -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    values = te.placeholder(long((8, 512)), DTYPE, name="x")
    powers = te.compute(values.shape, lambda *at: power_of_two(values[at]), name="powers")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([values, powers])}))
    _, column = schedule.get_loops(schedule.get_sblock("powers"))
    schedule.vectorize(schedule.split(column, [None, vector_unit(target).lanes])[1])
    assembly = tvm.compile(schedule.mod, target).mod.inspect_source("asm")
    assert "vfmadd" in assembly
    assert not re.search("vunpck|vshuf", assembly)  # of numbers of several iterations


def _axes(order: str) -> list[int]:
    return ["BLHD".index(letter) for letter in order]


def _task(attention: Attention, shapes: list[tuple[int, ...]]) -> Task:
    inputs = [te.placeholder(long(shape), DTYPE, name="x") for shape in shapes]
    module = tvm.IRModule({"main": te.create_prim_func([*inputs, attention(*inputs)])})
    return lowering.as_task(task_id(module), module, "main", 1, INFO)


def _reference(arrays: list[NDArray[Any]], bias: NDArray[Any] | None) -> NDArray[np.float32]:
    query, key, value = arrays
    repeats = query.shape[2] // key.shape[2]
    key, value = (part.repeat(repeats, 2) for part in (key, value))
    scores = np.einsum("bihd,bjhd->bhij", query, key, dtype="float64") * 0.4
    scores += 0 if bias is None else bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    found: NDArray[np.float32] = np.einsum("bhij,bjhd->bihd", weights, value).astype("float32")
    return found
