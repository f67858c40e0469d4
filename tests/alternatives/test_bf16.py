"""bfloat16: rounding and packing anywhere; on a CPU that multiplies it, whole programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn
from tvm import te

from tests.support.alternative_programs import direct_outputs, native_by_vectors, run
from tlmd.alternatives.attention import softmax
from tlmd.alternatives.attention.declaration import ATTENTION_BF16
from tlmd.alternatives.catalogue import declared, make_weights
from tlmd.alternatives.named_intrinsics import WORDS
from tlmd.alternatives.packed.declaration import NEIGHBOURS_BF16, PACKED_BF16
from tlmd.alternatives.words import bfloat16
from tlmd.alternatives.words.words import registration
from tlmd.data.errors import BadInput
from tlmd.data.model_spec import BF16, ModelSpec
from tlmd.data.types import Task
from tlmd.language.sentence import decode, encode
from tlmd.lowering.alternatives import with_alternatives
from tlmd.lowering.preparation import LoweredModel, lower_source, merged_tasks
from tlmd.measure.server.verify import tolerance
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import has_bf16, resolve
from tlmd.space.space import TaskSpace

INFO = native_by_vectors()
OLDER = resolve('{"kind": "llvm", "mcpu": "haswell"}', 1)
needs_bf16 = pytest.mark.skipif(not has_bf16(INFO), reason="this CPU does not multiply bfloat16")

bits = arrays.arrays(np.uint32, 64, elements=st.integers(0, 2**32 - 1))


def compiled(pair: Callable[[Any, Any], Any]) -> Any:
    """A function ``(float32 [64], uint32 [32])``: pairs of numbers that are 32 apart."""
    given_numbers = te.placeholder((64,), "float32")
    pairs = te.compute((32,), lambda i: pair(given_numbers[i], given_numbers[i + 32]))
    return tvm.compile(te.create_prim_func([given_numbers, pairs]), target="llvm")


def rounded(function: Any, numbers: Any) -> Any:
    """The bits of the rounded numbers, in their order."""
    got = tvm.runtime.tensor(np.zeros(32, np.uint32))
    function["main"](tvm.runtime.tensor(numbers.view(np.float32)), got)
    return got.numpy().view(np.uint16).reshape(32, 2).T.reshape(64)


@pytest.fixture(scope="module")
def rounding() -> Any:
    return compiled(bfloat16.pair)


@pytest.fixture(scope="module")
def truncation() -> Any:
    return compiled(bfloat16.truncated_pair)


@pytest.fixture(scope="module")
def powers() -> Any:
    def weights(lower: Any, upper: Any) -> Any:
        return bfloat16.truncated_pair(*map(softmax.power_of_two_to_truncate, (lower, upper)))

    return compiled(weights)


@settings(deadline=None)
@given(bits)
def test_numbers_are_rounded_to_the_nearest(rounding: Any, bits: Any) -> None:
    halves = rounded(rounding, bits)
    with np.errstate(invalid="ignore"):
        want = bits.view(np.float32).astype(ml_dtypes.bfloat16)
    nan = np.isnan(want.astype(np.float32))
    assert np.isnan(halves.view(ml_dtypes.bfloat16).astype(np.float32))[nan].all()
    assert (halves == want.view(np.uint16))[~nan].all()


@settings(deadline=None)
@given(bits)
def test_numbers_that_are_not_negative_are_truncated(truncation: Any, bits: Any) -> None:
    given_numbers = np.where(np.isnan(bits.view(np.float32)), bits, bits & 0x7FFFFFFF)
    halves = rounded(truncation, given_numbers)
    nan = np.isnan(given_numbers.view(np.float32))
    assert np.isnan(halves.view(ml_dtypes.bfloat16).astype(np.float32))[nan].all()
    assert (halves == given_numbers >> 16)[~nan].all()


@settings(deadline=None)
@given(arrays.arrays(np.float32, 64, elements=st.floats(-126, 126, width=32)))
def test_powers_of_two_are_truncated_to_bfloat16(powers: Any, exponents: Any) -> None:
    exponents[:3] = 0, -np.inf, np.nan
    found = rounded(powers, exponents).view(ml_dtypes.bfloat16).astype(np.float64)
    want = np.exp2(exponents.astype(np.float64))
    np.testing.assert_allclose(found, want, rtol=5.4e-3)
    assert found[0] == 1


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 50), st.integers(1, 3))
def test_weights_lie_in_pairs(taps: int, pairs: int, columns: int, vectors: int) -> None:
    width = 16 * vectors
    panels = -(-columns // width)
    channels = 2 * pairs
    numbers = np.arange(1, taps * channels * columns + 1, dtype="float32")
    weights = numbers.reshape(taps, channels, columns)
    got = make_weights(PACKED_BF16.name, weights, (panels, taps * pairs, width))
    assert got.dtype == np.uint32 and got.shape == (panels, taps * pairs, width)
    halves = got.view(np.uint16).reshape(panels, taps, pairs, width, 2).view(ml_dtypes.bfloat16)
    short = weights.astype(ml_dtypes.bfloat16).reshape(taps, 2, pairs, columns)
    for column in range(columns):
        found = halves[column // width, :, :, column % width]
        assert (found.transpose(0, 2, 1) == short[..., column]).all()


def test_weights_of_earlier_versions_are_pairs_of_neighbours() -> None:
    weights = np.arange(1, 4 * 16 + 1, dtype="float32").reshape(1, 4, 16)
    got = make_weights(NEIGHBOURS_BF16.name, weights, (1, 2, 16)).view(np.uint16).reshape(2, 16, 2)
    want = weights.astype(ml_dtypes.bfloat16).view(np.uint16).reshape(2, 2, 16)
    assert (got.transpose(0, 2, 1) == want).all()


class Network(nn.Module):
    """A convolution with padded rows, pixels and words, a grouped one, attention, and a GEMM with
    padded columns."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.grouped = nn.Conv2d(64, 64, 3, padding=1, groups=8)
        self.second = nn.Linear(64, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.grouped(torch.relu(self.first(x)))).flatten(2).permute(0, 2, 1)
        x = x.reshape(1, -1, 2, 32).permute(0, 2, 1, 3)
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        return torch.relu(self.second(x.permute(0, 2, 1, 3).reshape(-1, 64)) + 1)


@pytest.fixture(scope="module")
def model() -> LoweredModel:
    torch.manual_seed(0)
    source = from_module("network", Network().eval(), (torch.randn(1, 3, 7, 9),))
    return lower_source(ModelSpec("network", precision=BF16), source, INFO)


@pytest.fixture(scope="module")
def tasks(model: LoweredModel) -> list[Task]:
    return [task for task in merged_tasks([model]) if declared(task.alternative).multiplies]


@needs_bf16
def test_candidates_are_right_and_can_be_said(tasks: list[Task]) -> None:
    assert sorted(task.alternative for task in tasks) == [
        ATTENTION_BF16.name,
        *3 * [PACKED_BF16.name],
    ]
    # Of attention, the GEMMs, and the grouped convolution.
    assert sorted(len(TaskSpace(task).sketches) for task in tasks) == [1, 1, 2, 2]
    for task in tasks:
        given_arrays, want = direct_outputs(task, INFO)
        space, rng = TaskSpace(task), Random(0)
        for sketch in space.sketches:
            for _ in range(3):
                candidate = space.random(rng, sketch.index)
                assert decode(space.sketches, encode(sketch, candidate), task.id) == candidate
                final = space.finish(candidate).mod
            assert "tlmd_bf16_dot" in final.script()
            error = np.abs(run(final, given_arrays, INFO) - want)
            assert error.max() < tolerance("float32", 1, "bfloat16") * np.sqrt((want**2).mean())
            assert error.max() > 0


@needs_bf16
def test_nothing_is_rounded_unless_asked_for(model: LoweredModel) -> None:
    assert not any(declared(task.alternative).multiplies for task in with_alternatives(model.tasks))


def test_contradictions_are_refused_in_one_line(model: LoweredModel) -> None:
    with pytest.raises(BadInput, match="strict numerics allow fp32 only"):
        ModelSpec("network", strict_numerics=True, precision=BF16)
    with pytest.raises(BadInput, match="precision must be 'fp32', 'bf16' or 'int8', not 'fp8'"):
        ModelSpec("network", precision="fp8")
    source = from_module("network", Network().eval(), (torch.randn(1, 3, 7, 9),))
    older = lower_source(ModelSpec("network", precision=BF16), source, OLDER)
    with pytest.raises(BadInput, match="needs a CPU with AVX-512 BF16"):
        merged_tasks([older])


@pytest.mark.slow
def test_another_program_registers_the_intrinsics(tmp_path: Path) -> None:
    (tmp_path / "intrinsics.py").write_text(registration(WORDS))
    names = [words.dot for words in WORDS]
    assert len(names) == 2
    code = (
        "import sys; sys.modules['tlmd'] = None; import intrinsics; "
        f"from tvm.s_tir import TensorIntrin; assert all(map(TensorIntrin.get, {names!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
