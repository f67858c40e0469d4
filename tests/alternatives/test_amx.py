"""The CPU's matrix unit (Intel AMX): its code and its programs anywhere, and where there is one."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn
from tvm import te, tirx
from tvm.sym import Analyzer

from benchmarks.whole_models import onnx_models
from tests.support.alternative_programs import (
    candidate_outputs,
    check_random_candidates,
    direct_outputs,
    run,
)
from tlmd.alternatives.amx import amx, amx_code, amx_packed
from tlmd.alternatives.amx.declaration import AMX_BF16, AMX_INT8, AMX_PARTS, in_pairs, in_quads
from tlmd.alternatives.expressions import substituted
from tlmd.alternatives.kernel import multiple
from tlmd.alternatives.prefetch import with_prefetches
from tlmd.alternatives.product_loops import built_loops, find
from tlmd.alternatives.words import bfloat16
from tlmd.alternatives.words.words import registration
from tlmd.data.model_spec import BF16, FP32, INT8, ModelSpec
from tlmd.data.types import TargetInfo, Task
from tlmd.lowering.alternatives import with_alternatives
from tlmd.lowering.preparation import lower_source
from tlmd.measure.server.verify import tolerance
from tlmd.models.frontends import load_model
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.system_cpu import flags
from tlmd.space.hardware.target import has_amx, has_bf16, resolve
from tlmd.space.space import TaskSpace

INFO = resolve("native", 1)
WITH_UNIT = resolve('{"kind": "llvm", "mcpu": "sapphirerapids"}', 1)
needs_amx = pytest.mark.skipif(not has_amx(INFO), reason="this CPU has no matrix unit")


@settings(deadline=None)
@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.just(48), st.integers(1, 50)),
        elements=st.floats(-100, 100, width=32),
    ),
    st.sampled_from([1, 2]),
    st.sampled_from([16, 32, 64]),
)
def test_the_parts_of_weights_are_nearly_the_weights(weights: Any, parts: int, width: int) -> None:
    taps, channels, columns = weights.shape
    panels, half, words = -(-columns // width), channels // 2, multiple(channels // 2, 16)
    assert words == 32  # 24 pairs, of which 8 are in the second tile, and eight places overlap
    got = in_pairs(weights, (panels, taps * words, parts, width))
    halves = got.view(np.uint16).reshape(panels, taps, words, parts, width, 2)
    numbers = halves.view(ml_dtypes.bfloat16).astype(np.float64).sum(axis=3)
    found = numbers.transpose(1, 4, 2, 0, 3).reshape(taps, 2, words, panels * width)
    assert not found[..., columns:].any() and not found[:, :, 16:24].any()
    places = [*range(16), *range(24, 32)]
    want, got = weights.reshape(taps, 2, half, columns), found[:, :, places, :columns]
    assert (np.abs(got - want) <= np.abs(want) * 2.0 ** (-8 * parts) + 1e-38).all()


@given(st.integers(1, 3), st.integers(1, 50))
def test_bytes_of_weights_lie_in_whole_rows(taps: int, columns: int) -> None:
    rng, panels, quads = np.random.default_rng(taps), -(-columns // 32), multiple(100, 64) // 4
    weights = rng.integers(-128, 128, (taps, 100, columns), dtype=np.int8)
    got = in_quads(weights, (panels, taps * quads, 1, 32)).view(np.int8)
    found = got.reshape(panels, taps, quads, 32, 4).transpose(1, 2, 4, 0, 3)
    found = found.reshape(taps, 4 * quads, panels * 32)
    places = [*range(64), *range(92, 128)]  # what comes between is in the first row, too
    assert (found[:, places, :columns] == weights).all()
    assert not found[:, 64:92].any() and not found[..., columns:].any()


@settings(deadline=None)
@given(arrays.arrays(np.uint32, 64, elements=st.integers(0, 2**32 - 1)))
def test_what_rounding_leaves_is_finite(rests: Any, bits: Any) -> None:
    numbers = bits.view(np.float32)
    got = tvm.runtime.tensor(np.zeros(64, np.float32))
    rests["main"](tvm.runtime.tensor(numbers), got)
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = numbers.astype(ml_dtypes.bfloat16).astype(np.float32)
    kept = np.isfinite(rounded)
    assert (got.numpy()[kept] == numbers[kept] - rounded[kept]).all()
    assert (got.numpy()[~np.isfinite(numbers)] == 0).all()


@pytest.fixture(scope="module")
def rests() -> Any:
    numbers = te.placeholder((64,), "float32")
    made = te.compute((64,), lambda i: bfloat16.rest(numbers[i]))
    return tvm.compile(te.create_prim_func([numbers, made]), target="llvm")


class Network(nn.Module):
    """Convolutions with strides, padding and words that overlap, and GEMMs with rows to spare."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 44, 3, padding=1)
        self.second = nn.Conv2d(44, 160, 3, stride=2, padding=1)
        self.third = nn.Linear(160, 72)
        self.last = nn.Linear(72 * 63, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x)))).flatten(2).permute(0, 2, 1)
        return torch.as_tensor(self.last(torch.relu(self.third(x) + 1).flatten(1)))


def made_for_unit(info: TargetInfo, precision: str, strict: bool = False) -> list[Task]:
    torch.manual_seed(0)
    source = from_module("network", Network().eval(), (torch.randn(1, 3, 13, 18),))
    lowered = lower_source(ModelSpec("network", precision=precision), source, info)
    tasks = with_alternatives(lowered.tasks, strict, precision)
    return [task for task in tasks if task.alternative in (AMX_BF16.name, AMX_PARTS.name)]


@pytest.mark.slow
def test_only_what_can_use_the_unit_has_a_program_for_it() -> None:
    names = {FP32: AMX_PARTS.name, BF16: AMX_BF16.name}
    for precision, name in names.items():
        # Not the convolution of three channels.
        assert [task.alternative for task in made_for_unit(WITH_UNIT, precision)] == 3 * [name]
    assert not made_for_unit(WITH_UNIT, FP32, strict=True)
    assert not made_for_unit(resolve('{"kind": "llvm", "mcpu": "znver4"}', 1), FP32)


@pytest.mark.parametrize("precision", [FP32, BF16])
@pytest.mark.slow
def test_unscheduled_programs_are_right_on_any_cpu(precision: str) -> None:
    for task in made_for_unit(WITH_UNIT, precision):
        given_arrays, want = direct_outputs(task, INFO)
        error = np.abs(run(tvm.ir.load_json(task.module), given_arrays, INFO) - want).max()
        rms = np.sqrt((want**2).mean())
        if precision == FP32:
            assert error < 4e-5 * rms
        else:
            assert 1e-4 * rms < error < tolerance("float32", 1, "bfloat16") * rms


def test_kernels_prefetch_the_next_block_of_weights() -> None:
    *_, largest = sorted(made_for_unit(WITH_UNIT, FP32), key=lambda task: task.flops)
    space = TaskSpace(largest)
    final = space.finish(space.random(Random(0), 0)).mod
    found = find(with_prefetches(final)["main"], (amx_packed.PRODUCED,))
    assert found is not None
    loops, read, at = built_loops(found.around), found.read, found.at
    calls: list[Any] = []
    tvm_ffi.structural_walk(final["main"].body, (tirx.Evaluate, calls.append))
    (before,) = (call.value for call in calls if hasattr(call.value, "args"))
    assert int(before.args[-1]) == 0 and "amx_products_init" in final.script(show_meta=False)
    assert "amx_products_init" not in with_prefetches(final).script(show_meta=False)
    calls.clear()
    tvm_ffi.structural_walk(with_prefetches(final)["main"].body, (tirx.Evaluate, calls.append))
    begin, after, end = (call.value for call in calls if hasattr(call.value, "args"))
    assert [str(one.args[0].value) for one in (begin, end)] == [amx_code.BEGIN, amx_code.END]
    shape = [int(extent) for extent in read.source.shape]
    counts = [int(loop.extent) for loop in loops]
    steps, lines = int(after.args[1]), int(after.args[-1])

    def place(indices: Any, turn: tuple[int, ...]) -> int:
        values = [
            (loop.loop_var, tirx.const(n, "int64")) for loop, n in zip(loops, turn, strict=True)
        ]
        numbers = [int(Analyzer().simplify(substituted(i, values))) for i in indices]
        return int(np.ravel_multi_index(numbers, shape))

    turns = list(itertools.product(*map(range, counts)))
    size = math.prod(int(side.extent) for side in read.region)
    fetched: dict[int, set[int]] = {}
    for turn in turns:
        start = place(after.args[-2].args[0].indices, turn)
        words = range(start, start + steps * lines * amx_code.LINE_WORDS)
        fetched.setdefault(place(at, turn), set()).update(words)
    blocks = [block for block, _ in itertools.groupby(place(at, turn) for turn in turns)]
    assert len(blocks) > 1
    for block, following in itertools.pairwise(blocks):
        assert fetched[block] >= set(range(following, following + size))


class Bytes(nn.Module):
    """Convolutions whose channels are no multiple of a row of a tile, and of three channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 88, 3, 2, 1)
        self.second = nn.Conv2d(88, 64, 3, padding=1)
        self.last = nn.Linear(64, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return torch.as_tensor(self.last(x.mean((2, 3))))


@pytest.fixture(scope="module")
def tasks_of_bytes(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("quantised") / "network.onnx"
    onnx_models.quantise(Bytes().eval(), (torch.randn(2, 3, 19, 22),), path)
    lowered = lower_source(ModelSpec(str(path), precision=INT8), load_model(str(path)), WITH_UNIT)
    tasks = with_alternatives(lowered.tasks, False, INT8)
    return [task for task in tasks if task.alternative == AMX_INT8.name]


@pytest.mark.slow
def test_unscheduled_programs_of_bytes_are_exact_on_any_cpu(tasks_of_bytes: list[Task]) -> None:
    assert len(tasks_of_bytes) == 2
    for task in tasks_of_bytes:
        given_arrays, want = direct_outputs(task, INFO)
        got = run(tvm.ir.load_json(task.module), given_arrays, INFO)
        assert np.abs(got.astype(np.float64) - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.skipif(not has_amx(INFO, amx_code.INT8), reason="this CPU has no matrix unit")
def test_candidates_of_bytes_are_exact(tasks_of_bytes: list[Task]) -> None:
    for task, sketch in itertools.product(tasks_of_bytes, range(2)):
        got, want = candidate_outputs(task, sketch, "tlmd_amx_int8", INFO)
        assert np.abs(got.astype(np.float64) - want).max() <= 1e-5 * np.abs(want).max()


@needs_amx
def test_candidates_are_right_and_can_be_said() -> None:
    for task in made_for_unit(INFO, FP32):
        assert len(TaskSpace(task).sketches) == 2
        check_random_candidates(task, Random(0), count=3)


@needs_amx
def test_candidates_call_the_unit_and_may_prefetch() -> None:
    for task, sketch in itertools.product(made_for_unit(INFO, BF16), range(2)):
        got, want = candidate_outputs(task, sketch, "tlmd_amx_bf16", INFO)
        error = np.abs(got - want).max()
        assert 0 < error < tolerance("float32", 1, "bfloat16") * np.sqrt((want**2).mean())


@needs_amx
def test_programs_run_where_there_is_no_tlmd(tmp_path: Path) -> None:
    task = made_for_unit(INFO, FP32)[-1]
    space = TaskSpace(task)
    trace = space.trace_json(space.random(Random(0), 0))
    (tmp_path / "intrinsics.py").write_text(registration(amx.named(trace)))
    (tmp_path / "task.json").write_text(task.module)
    (tmp_path / "trace.json").write_text(trace)
    code = """
import json, sys
sys.modules["tlmd"] = None
import intrinsics, tvm
from tvm.s_tir import Schedule, Trace
from tvm.s_tir.meta_schedule.postproc import RewriteTensorize
schedule = Schedule(tvm.ir.load_json(open("task.json").read()))
Trace.apply_json_to_schedule(json.load(open("trace.json")), schedule)
schedule.enter_postproc()
assert RewriteTensorize().apply(schedule)
assert "tlmd_amx_bf16" in schedule.mod.script(show_meta=False)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("may", [True, False])
def test_features_count_that_the_name_of_the_cpu_hides(
    may: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu avx512_bf16 amx_bf16 amx_tile amx_int8 avx512f\n")
    shown = flags(cpuinfo)
    monkeypatch.setattr("tlmd.space.hardware.target.flags", lambda: shown)
    monkeypatch.setattr("tlmd.space.hardware.target.may_use_matrix_unit", lambda: may)
    name = "tlmd.space.hardware.target.codegen.llvm_get_system_cpu"
    monkeypatch.setattr(name, lambda: "rocketlake")
    amx_features = ["+amx-tile", "+amx-bf16", "+amx-int8"] if may else []
    hidden = resolve("native")
    wide = "-prefer-256-bit"
    assert json.loads(hidden.spec)["mattr"] == ["+avx512bf16", *amx_features, wide]
    assert has_amx(hidden) == may and has_bf16(hidden)
    monkeypatch.setattr(name, lambda: "sapphirerapids")
    named = resolve("native")
    assert json.loads(named.spec)["mattr"] == ([wide] if may else [wide, "-amx-tile"])
    assert has_amx(named) == may
