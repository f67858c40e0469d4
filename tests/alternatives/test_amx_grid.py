"""Convolutions for the CPU's matrix unit whose data are read where they are, or by runs."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benchmarks.whole_models import onnx_models
from tests.support.alternative_programs import (
    built,
    candidate_outputs,
    check_random_candidates,
    direct_outputs,
    run,
)
from tlmd.alternatives.alternative import Alternative
from tlmd.alternatives.amx import amx_grid, amx_lines
from tlmd.alternatives.amx.amx_code import INT8
from tlmd.alternatives.amx.declaration import AMX_BF16, AMX_INT8, AMX_PARTS, in_quads
from tlmd.alternatives.amx.tile_rows import tile_rows
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import Task
from tlmd.lowering.alternatives import as_task, direct_program
from tlmd.lowering.preparation import lower_source
from tlmd.measure.server.verify import tolerance
from tlmd.models.frontends import load_model
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import has_amx, resolve
from tlmd.space.space import TaskSpace

INFO = resolve("native", 1)
needs_amx = pytest.mark.skipif(not has_amx(INFO), reason="this CPU has no matrix unit")


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=4),
    st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
@pytest.mark.slow
def test_taps_are_rows_of_the_grid(result: list[int], counts: list[int]) -> None:
    taps = counts[: len(result)]
    image = [extent + tap - 1 for extent, tap in zip(result, taps, strict=True)]
    height = min(
        amx_grid._heights(image, result), key=lambda one: amx_grid._cost(image, result, one)
    )
    grid = amx_grid.Grid(tuple(image), tuple(result), tuple(taps), height)
    pitches = [(range(count), pitch) for count, pitch in grid.window]
    seen = set()
    for pixel in itertools.product(*map(range, result)):
        block, row = (int(index) for index in grid.place(pixel))
        assert 0 <= block < grid.blocks and 0 <= row < grid.rows
        seen.add((block, row))
        for tap in itertools.product(*map(range, taps)):
            several = [one for one, count in zip(tap, taps, strict=True) if count > 1]
            apart = sum(one * pitch for one, (_, pitch) in zip(several, pitches, strict=True))
            want = np.ravel_multi_index(tuple(np.add(pixel, tap)), image)
            assert int(grid.start(block)) + row + apart == want
    assert len(seen) == math.prod(result)


@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 9), st.integers(1, 40))
def test_runs_of_bytes_are_the_weights(rows: int, taps: int, channels: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(-128, 128, (rows, taps, channels, columns), dtype=np.int8)
    found = tile_rows(weights.shape, 64, 1)
    assert found is not None and found.is_run and found.elements % 64 == 0
    panels = -(-columns // 32)
    got = in_quads(weights, (panels, found.elements // 4, 1, 32)).view(np.int8)
    numbers = got.reshape(panels, -1, 32, 4).transpose(1, 3, 0, 2).reshape(found.elements, -1)
    runs = numbers[: rows * found.apart].reshape(rows, found.apart, -1)
    of_a_run = taps * channels
    want = weights.reshape(rows, of_a_run, columns)
    assert (runs[:, :of_a_run, :columns] == want).all()
    assert np.abs(numbers.astype(int)).sum() == np.abs(want.astype(int)).sum()


class Network(nn.Module):
    """Filters of several shapes over two images, and patches of few channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 44, 4, 4)
        self.wide = nn.Conv2d(44, 72, (3, 5), padding=(1, 2))
        self.square = nn.Conv2d(72, 64, 3, padding=1)
        self.valid = nn.Conv2d(64, 32, (1, 3))
        self.deep = nn.Conv3d(32, 48, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.wide(torch.relu(self.patches(x))))
        x = torch.relu(self.valid(torch.relu(self.square(x))))
        return torch.as_tensor(self.deep(x[:, :, None].expand(-1, -1, 2, -1, -1)))


def alternatives(kind: Alternative) -> list[Task]:
    torch.manual_seed(0)
    source = from_module("network", Network().eval(), (torch.randn(2, 3, 36, 52),))
    return _for_unit(lower_source(ModelSpec("network"), source, INFO).tasks, kind)


def _for_unit(tasks: list[Task], kind: Alternative) -> list[Task]:
    found = [(task, kind.find(direct_program(task))) for task in tasks]
    return [as_task(task, kind.name, made) for task, made in found if made is not None]


def is_grid(task: Task) -> bool:
    return amx_grid.PRODUCED in tvm.ir.load_json(task.module).script(show_meta=False)


@pytest.mark.parametrize("kind", [AMX_PARTS, AMX_BF16], ids=["parts", "bf16"])
@pytest.mark.slow
def test_unscheduled_programs_are_right_on_any_cpu(kind: Alternative) -> None:
    tasks = alternatives(kind)
    assert [is_grid(task) for task in tasks] == [False, *(4 * [True])]
    for task in tasks:
        given_arrays, want = direct_outputs(task, INFO)
        error = np.abs(run(tvm.ir.load_json(task.module), given_arrays, INFO) - want).max()
        rms = np.sqrt((want**2).mean())
        assert error < (4e-5 if kind is AMX_PARTS else tolerance("float32", 1, "bfloat16")) * rms


@needs_amx
def test_candidates_are_right_and_can_be_said() -> None:
    for task in alternatives(AMX_PARTS):
        assert len(TaskSpace(task).sketches) == 2
        check_random_candidates(task, Random(0), count=2)


@needs_amx
def test_long_sums_are_done_in_several_calls() -> None:
    """The kernel has the taps of one line then, and the sums are loaded for the next line."""
    torch.manual_seed(0)
    net = nn.Conv2d(320, 32, 3, padding=1)
    source = from_module("network", net.eval(), (torch.randn(1, 320, 5, 9),))
    (task,) = _for_unit(lower_source(ModelSpec("network"), source, INFO).tasks, AMX_PARTS)
    check_random_candidates(task, Random(0))
    text = built(task, sketch=0).script(show_meta=False)
    assert "x10_2_3by1" in text and f"{amx_grid.PRODUCED}_init" in text


class Bytes(nn.Module):
    """Few channels, with a padding that is not zero, and a grid whose columns fill no panel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 88, 7, 2, 3)
        self.second = nn.Conv2d(88, 40, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.second(torch.relu(self.first(x))))


@pytest.fixture(scope="module")
def tasks_of_bytes(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    torch.manual_seed(0)
    path: Path = tmp_path_factory.mktemp("quantised") / "network.onnx"
    onnx_models.quantise(Bytes().eval(), (torch.randn(2, 3, 19, 22),), path)
    lowered = lower_source(ModelSpec(str(path), precision="int8"), load_model(str(path)), INFO)
    return _for_unit(lowered.tasks, AMX_INT8)


@pytest.mark.slow
def test_unscheduled_programs_of_bytes_are_exact_on_any_cpu(tasks_of_bytes: list[Task]) -> None:
    first, second = tasks_of_bytes
    assert amx_lines.LINES in tvm.ir.load_json(first.module).script(show_meta=False)
    assert is_grid(second)
    for task in tasks_of_bytes:
        given_arrays, want = direct_outputs(task, INFO)
        got = run(tvm.ir.load_json(task.module), given_arrays, INFO)
        assert np.abs(got.astype(np.float64) - want).max() <= 1  # of a byte


@pytest.mark.skipif(not has_amx(INFO, INT8), reason="this CPU has no matrix unit")
def test_candidates_of_bytes_are_exact(tasks_of_bytes: list[Task]) -> None:
    for task, sketch in itertools.product(tasks_of_bytes, range(2)):
        got, want = candidate_outputs(task, sketch, "tlmd_amx_int8", INFO)
        assert np.abs(got.astype(np.float64) - want).max() <= 1
