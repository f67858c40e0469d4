"""Lowering: the numbers stay right, moves disappear, equal functions are one task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from tlmd.data.types import Task
from tlmd.lowering import lowering
from tlmd.models.frontends import load_model
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.models.sources import SourceModel
from tlmd.records import metaschedule_files
from tlmd.space.hardware.target import resolve, tvm_target

INFO = resolve("native")
TARGET = tvm_target(INFO)
Mix = tuple[SourceModel, tvm.IRModule]


class Mixed(nn.Module):
    """Every kind of convolution, normalised with random statistics; shortcuts and gates."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), self.norm(16), nn.ReLU())
        self.grouped = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, groups=4), self.norm(16))
        self.depthwise = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, groups=16), self.norm(16))
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 16, 1), nn.Hardsigmoid())
        self.before = self.norm(32)
        self.up = nn.ConvTranspose2d(32, 8, 4, 2, 1, bias=False)
        self.after = self.norm(8)

    @staticmethod
    def norm(channels: int) -> nn.BatchNorm2d:
        norm = nn.BatchNorm2d(channels, eps=1e-3)
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        return norm

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.stem(x)
        x = nn.functional.hardswish(x + self.grouped(x))
        y = self.depthwise(x) * self.gate(x)
        z = torch.relu(self.before(torch.cat([x, y], 1)))
        return torch.tanh(self.after(self.up(z))), nn.functional.max_pool2d(z, 3, 2, 1)


def run(source: SourceModel, lowered: Any, database: Any = None) -> lowering.Compiled:
    compiled = lowering.compile_model(lowered, TARGET, database)
    inputs = source.random_inputs(1)
    machine = relax.VirtualMachine(compiled.executable, tvm.cpu())
    outputs = machine["main"](*map(tvm.runtime.tensor, inputs))
    assert source.reference is not None
    wanted = source.reference(*inputs)
    assert len(outputs) == len(wanted)
    for got, want in zip(outputs, wanted, strict=True):
        got, want = got.numpy().astype("float64"), want.astype("float64")
        assert np.abs(got - want).max() <= 1e-3 * np.abs(want).max()
    return compiled


@pytest.fixture(scope="module")
def mixed() -> Mix:
    torch.manual_seed(0)
    source = from_module("mixed", Mixed().eval(), (torch.randn(2, 3, 32, 32),))
    return source, lowering.lower(source.module, TARGET)


def test_channels_last_gives_the_same_numbers(mixed: Mix) -> None:
    compiled = run(*mixed)
    assert compiled.functions_with_record == 0
    assert len(compiled.missing) == compiled.functions


def test_transposes_stay_at_the_borders(mixed: Mix) -> None:
    names = [task.name for task in lowering.extract(mixed[1], INFO)]
    # The images come in, and each of the outputs goes out.
    assert sum("transpose" in name for name in names) <= 3
    assert not any("batch_norm" in name or "sqrt" in name for name in names)


def test_convolutions_are_channels_last(mixed: Mix) -> None:
    blocks = [task.module for task in lowering.extract(mixed[1], INFO) if "conv2d" in task.name]
    assert sum("conv2d_nhwc" in module for module in blocks) == 4  # a transposed one is a GEMM


@pytest.mark.parametrize("name", ["bert-tiny", "gemm-int8"])
@pytest.mark.slow
def test_zoo_numbers(name: str) -> None:
    source = load_model(name)
    run(source, lowering.lower(source.module, TARGET))


@pytest.mark.slow
def test_arithmetic_fuses_into_matmuls() -> None:
    source = load_model("bert-tiny", ((2, 16),))
    tasks = lowering.extract(lowering.lower(source.module, TARGET), INFO)
    weights = {task.name: task.weight for task in tasks}
    assert sum(weights.values()) <= 36
    assert sum(w for name, w in weights.items() if "matmul" in name and "gelu" in name) == 2
    # query, key and value are one product: with three more a layer has four
    assert sum(w for name, w in weights.items() if "matmul" in name) == 2 * 4
    assert all(task.flops > 0 for task in tasks if "matmul" in task.name)


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.last = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return torch.as_tensor(self.last(x))


def test_weights_and_records() -> None:
    torch.manual_seed(0)
    source = from_module("repeated", Repeated().eval(), (torch.randn(4, 32),))
    lowered = lowering.lower(source.module, TARGET)
    tasks = lowering.extract(lowered, INFO)
    assert sorted(task.weight for task in tasks) == [1, 3]
    assert all(task.target == INFO for task in tasks)

    database = ms.database.MemoryDatabase()
    record(database, tasks[0])
    compiled = run(source, lowered, database)
    assert (compiled.functions, compiled.functions_with_record) == (2, 1)
    assert compiled.missing == [tasks[1].name]


@pytest.mark.slow
def test_every_task_of_a_model_can_get_its_record(mixed: Mix) -> None:
    source, lowered = mixed
    database = ms.database.MemoryDatabase()
    for task in lowering.extract(lowered, INFO):
        record(database, task)
    compiled = run(source, lowered, database)
    assert compiled.functions_with_record == compiled.functions and not compiled.missing


def record(database: Any, task: Task) -> None:
    """Give the task a record whose schedule splits the first loop of its first block."""
    module = tvm.ir.load_json(task.module)
    schedule = tvm.s_tir.Schedule(module)
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    schedule.split(schedule.get_loops(block)[0], [None, 2])
    workload = database.commit_workload(module)
    arguments = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    database.commit_tuning_record(
        ms.database.TuningRecord(schedule.trace, workload, [1e-3], TARGET, arguments)
    )


class Scatters(nn.Module):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.index_put((at,), torch.zeros(3)))


def test_what_tvm_writes_as_plain_loops_is_no_task(tmp_path: Path) -> None:
    example = (torch.randn(8), torch.tensor([1, 5, 2]))
    source = from_module("scatters", Scatters(), example)
    lowered = lowering.lower(source.module, TARGET)
    database = metaschedule_files.create(tmp_path)
    for task in lowering.extract(lowered, INFO):
        metaschedule_files.commit(database, task, metaschedule_files.UNSCHEDULED, 1.0, TARGET)
    compiled = run(source, lowered, database)
    assert compiled.functions == compiled.functions_with_record


def test_functions_of_one_id_have_the_same_names_in_all_sets_of_shapes() -> None:
    known: dict[str, Any] = {}
    first, second = (
        lowering.lower(from_module(n, Repeated(), (torch.randn(2, 32),)).module, TARGET, known)
        for n in ("first", "second")
    )
    modules = [{t.id: t.module for t in lowering.extract(m, INFO)} for m in (first, second)]
    assert modules[0] == modules[1] and set(known) >= set(modules[0])


class Permuted(nn.Module):
    """Products of a map whose rows do not follow each other in memory, and of a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Conv2d(8, 16, 1)
        self.linear = nn.Linear(16, 24)
        self.matrix = nn.Parameter(torch.randn(16, 24))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.map(x)
        return self.linear(y.permute(0, 2, 3, 1)), y.permute(0, 3, 2, 1) @ self.matrix


def test_weights_are_not_repeated_for_each_row_of_a_permuted_map() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(2, 8, 5, 7)
    module = Permuted().eval()
    source = from_module("permuted", module, (inputs,))
    lowered = lowering.lower(source.module, TARGET)
    products = [t for t in lowering.extract(lowered, INFO) if "matmul" in t.name]
    shapes = [
        [tuple(map(int, p.ty.shape)) for p in tvm.ir.load_json(task.module)["main"].params]
        for task in products
    ]
    assert products and all((16, 24) in listed for listed in shapes)
    executable = lowering.compile_model(lowered, TARGET, None).executable
    machine = relax.VirtualMachine(executable, tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(inputs.numpy()))
    with torch.no_grad():
        want = module(inputs)
    for one, other in zip(got, want, strict=True):
        assert np.abs(one.numpy() - other.numpy()).max() < 1e-4
