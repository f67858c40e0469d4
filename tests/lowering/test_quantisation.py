"""Quantised models: what int8 programs compute, anywhere; on a CPU that multiplies bytes, whole."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn
from tvm import relax, te

from benchmarks.whole_models import onnx_models
from tests.support.alternative_programs import direct_outputs, run
from tlmd.alternatives.packed.declaration import PACKED_INT8, in_quads
from tlmd.alternatives.words import int8
from tlmd.data.errors import BadInput
from tlmd.data.model_spec import INT8, ModelSpec
from tlmd.language.sentence import decode, encode
from tlmd.lowering import lowering
from tlmd.lowering.acceptance import accept
from tlmd.lowering.passes import quantisation, rewrites
from tlmd.lowering.preparation import lower_source, merged_tasks
from tlmd.models.frontends import load_model
from tlmd.space.hardware.target import has_vnni, resolve, tvm_target
from tlmd.space.space import TaskSpace

INFO = resolve("native", 1)
OLDER = resolve('{"kind": "llvm", "mcpu": "haswell"}', 1)
needs_vnni = pytest.mark.skipif(not has_vnni(INFO), reason="this CPU does not multiply bytes")

words = arrays.arrays(np.uint32, 16, elements=st.integers(0, 2**32 - 1))


@pytest.fixture(scope="module")
def products() -> Any:
    """A function ``(uint8 [16, 4], uint32 [16], int32 [16])``."""
    a, b = te.placeholder((16, 4), "uint8"), te.placeholder((16,), "uint32")
    found = te.compute((16,), lambda i: int8.product([a[i, j] for j in range(4)], b[i]))
    return tvm.compile(te.create_prim_func([a, b, found]), target="llvm")


@settings(deadline=None)
@given(words, words)
def test_the_bytes_of_words_are_multiplied(products: Any, a: Any, b: Any) -> None:
    got = tvm.runtime.tensor(np.zeros(16, np.int32))
    unsigned, signed = a.view(np.uint8).reshape(16, 4), b.view(np.int8).reshape(16, 4)
    products["main"](tvm.runtime.tensor(unsigned), tvm.runtime.tensor(b), got)
    want = (unsigned.astype(np.int32) * signed).sum(1)
    assert (got.numpy() == want).all()


@given(st.integers(1, 3), st.integers(3, 9), st.integers(1, 40))
def test_packed_bytes_are_the_channels_of_each_tap(taps: int, channels: int, columns: int) -> None:
    rng = np.random.default_rng(taps * channels * columns)
    weights = rng.integers(-128, 128, (taps, channels, columns), dtype=np.int8)
    quads, panels = -(-channels // 4), -(-columns // 16)
    got = in_quads(weights, (panels, taps * quads, 16))
    found = got.view(np.int8).reshape(panels, taps, quads, 16, 4).transpose(1, 2, 4, 0, 3)
    found = found.reshape(taps, 4 * quads, -1)
    assert (found[:, :channels, :columns] == weights).all()
    assert not found[:, channels:].any() and not found[..., columns:].any()


class Network(nn.Module):
    """Three channels, padding before a zero point that is not zero, a residual, groups, a GEMM.

    And the largest of bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, 2, 1)
        self.second = nn.Conv2d(16, 24, 3, padding=1)
        self.third = nn.Conv2d(24, 24, 1)
        self.groups = nn.Conv2d(24, 24, 3, groups=24)
        self.last = nn.Linear(24, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x))
        x = torch.max_pool2d(torch.relu(self.third(x) + x), 3, 2, 1)
        x = self.groups(x)
        return torch.as_tensor(self.last(x.mean((2, 3))))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    found = tmp_path_factory.mktemp("quantised") / "network.onnx"
    onnx_models.quantise(Network().eval(), (torch.randn(2, 3, 19, 22),), found)
    return found


@pytest.mark.slow
def test_integers_compute_what_the_model_says(path: Path) -> None:
    source = load_model(str(path))
    (given_array,) = source.random_inputs(0)
    assert source.reference is not None
    (want,) = source.reference(given_array)
    for is_int8 in (False, True):
        lowered = lowering.lower(source.module, tvm_target(INFO), int8=is_int8)
        functions = [str(f.script()) for f in lowered.functions.values()]
        assert any('"int8"' in text for text in functions) == is_int8
        pools = [text for text in functions if "def max_pool2d(" in text]
        assert len(pools) == is_int8 and all("float32" not in text for text in pools)
        built = lowering.compile_model(lowered, tvm_target(INFO)).executable
        machine = relax.VirtualMachine(built.jit(), tvm.cpu())
        got = machine["main"](tvm.runtime.tensor(given_array))
        step = np.abs(np.diff(np.unique(want))).min()
        assert np.abs(got.numpy() - want).max() < 1.01 * step


@needs_vnni
def test_candidates_are_exact_and_can_be_said(path: Path) -> None:
    accepted = accept(ModelSpec(str(path), precision=INT8), INFO)
    tasks = [task for task in accepted.tasks if task.alternative == PACKED_INT8.name]
    assert len(tasks) == 4
    for task in tasks:
        given_arrays, want = direct_outputs(task, INFO)
        space, rng = TaskSpace(task), Random(0)
        for sketch in space.sketches:
            candidate = space.random(rng, sketch.index)
            assert decode(space.sketches, encode(sketch, candidate), task.id) == candidate
            final = space.finish(candidate).mod
            assert "vpdpbusd" in final.script()
            got = run(final, given_arrays, INFO)
            assert np.abs(got.astype(np.float64) - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_scales_of_other_formats_stay_as_they_are(dtype: str) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    with builder.function("main", [x]):
        scale, zero = relax.const(0.5, "float32"), relax.const(0.0, "float16")
        builder.emit_func_output(builder.emit(relax.op.quantize(x, scale, zero, 1, dtype)))
    module = builder.get()
    kept = rewrites.apply([quantisation.SpellOutScales])(module)
    tvm.ir.assert_structural_equal(kept, module)


def test_what_cannot_be_int8_is_refused(path: Path) -> None:
    plain = ModelSpec(str(path.with_suffix(".fp32.onnx")), precision=INT8)
    with pytest.raises(BadInput, match="is not quantised"):
        lower_source(plain, load_model(plain.name), INFO)
    older = lower_source(ModelSpec(str(path), precision=INT8), load_model(str(path)), OLDER)
    with pytest.raises(BadInput, match="needs a CPU with AVX-512 VNNI"):
        merged_tasks([older])
