"""Alternatives compute what the direct program computes, and the model gets the chosen ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import relax

from tests.support.alternative_programs import direct_outputs, native_by_vectors, run
from tlmd.alternatives.packed.declaration import PACKED
from tlmd.alternatives.packed.packed import GROUPED
from tlmd.alternatives.winograd.declaration import FILTERINGS
from tlmd.data.config import MeasureConfig
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import MeasureInput, Status, Task
from tlmd.language.sentence import decode, encode
from tlmd.lowering import lowering
from tlmd.lowering.alternatives import substitute, with_alternatives
from tlmd.lowering.preparation import LoweredModel, lower_source, merged_tasks
from tlmd.measure.cores.core_plan import plan_cores
from tlmd.measure.measurer import Measurer
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.models.sources import SourceModel
from tlmd.records import metaschedule_files
from tlmd.space import apply_trace
from tlmd.space.describe import block_names, describe
from tlmd.space.hardware.target import tvm_target
from tlmd.space.space import TaskSpace

INFO = native_by_vectors()
TARGET = tvm_target(INFO)
CHANNELS = 16  # whole vectors on every CPU


class Network(nn.Module):
    """Winograd applies to seven convolutions, one of them 3-D, two with groups.

    The others have a stride or few channels.

    Weights are packed but for columns of which no vector, half or quarter of one can be written,
    and for groups that do not fill vectors.
    """

    def __init__(self) -> None:
        super().__init__()
        wide = 2 * CHANNELS
        self.first = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.plain = nn.Conv2d(CHANNELS, wide, 3, padding=1)
        self.residual = nn.Conv2d(wide, wide, 3, padding=1)
        self.unpadded = nn.Conv2d(wide, CHANNELS, 3)
        self.tall = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.solid = nn.Conv3d(CHANNELS, CHANNELS, 3, padding=(0, 1, 1))
        self.strided = nn.Conv2d(CHANNELS, CHANNELS, 3, 2, 1)
        # Zeros: no alternative.
        self.depthwise = nn.Conv2d(CHANNELS, CHANNELS, 3, 1, 1, groups=CHANNELS)
        self.grouped = nn.Conv2d(CHANNELS, CHANNELS, 3, 1, 1, groups=2)
        self.broad = nn.Conv2d(CHANNELS, 4 * CHANNELS, 3, 1, 1, groups=2)
        self.uneven = nn.Conv2d(4 * CHANNELS, 3 * CHANNELS, 1, groups=CHANNELS)
        self.wide = nn.Linear(4, 5 * CHANNELS + CHANNELS // 2)
        self.narrow = nn.Linear(5 * CHANNELS + CHANNELS // 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.plain(x))
        x = torch.relu(x + self.residual(x))
        x = self.tall(nn.functional.max_pool2d(self.unpadded(x), (1, 2)))
        x = self.solid(torch.stack((x, -x, 2 * x, x), 2)).sum(2)
        x = self.uneven(self.broad(self.grouped(self.depthwise(self.strided(x)))))
        return torch.as_tensor(self.narrow(torch.relu(self.wide(x))))


@pytest.fixture(scope="module")
def source() -> SourceModel:
    torch.manual_seed(0)
    return from_module("network", Network().eval(), (torch.randn(2, 3, 15, 18),))


@pytest.fixture(scope="module")
def model(source: SourceModel) -> LoweredModel:
    return lower_source(ModelSpec("network"), source, INFO)


@pytest.fixture(scope="module")
def groups(model: LoweredModel) -> dict[str, list[Task]]:
    found: dict[str, list[Task]] = {}
    for task in with_alternatives(model.tasks):
        found.setdefault(task.computation, []).append(task)
    return {key: tasks for key, tasks in found.items() if len(tasks) > 1}


def test_what_can_be_computed_otherwise_has_alternatives(
    model: LoweredModel, groups: dict[str, list[Task]]
) -> None:
    kinds = []
    for tasks in groups.values():
        (direct,) = (task for task in tasks if not task.alternative)
        others = [task for task in tasks if task.alternative]
        assert all(t.direct == direct.module and t.flops <= direct.flops for t in others)
        assert all(t.constants == direct.constants and t.weight == direct.weight for t in others)
        kinds.append({t.alternative for t in others})
    assert kinds.count({PACKED.name}) == 3  # the first, that with a stride, a GEMM
    assert len([kind for kind in kinds if kind & set(FILTERINGS)]) == 7 and len(kinds) == 10


def test_strict_numerics_allow_no_winograd(model: LoweredModel) -> None:
    assert len(merged_tasks([model])) > len(model.tasks)
    strict = replace(model, spec=ModelSpec("network", strict_numerics=True))
    assert {task.alternative for task in merged_tasks([strict])} == {"", PACKED.name}


def test_a_packed_operand_is_described_like_a_plain_one(groups: dict[str, list[Task]]) -> None:
    (tasks,) = (ts for ts in groups.values() if "matmul" in ts[0].name)
    direct, packed = (
        describe(tvm.ir.load_json(task.module))
        for task in sorted(tasks, key=lambda task: task.alternative)
    )
    for one, other in zip(packed.blocks[0].reads, direct.blocks[0].reads, strict=True):
        assert tuple(dim for dim in one.dims if dim) == other.dims


def test_weights_that_change_have_no_alternative(model: LoweredModel) -> None:
    unknown = [replace(task, constants=()) for task in model.tasks]
    assert with_alternatives(unknown) == unknown


def _is_grouped(task: Task) -> bool:
    """Whether the padded data of each panel's groups are made when the panel begins."""
    return GROUPED in block_names(tvm.ir.load_json(task.module))


def _alternatives(groups: dict[str, list[Task]]) -> Iterator[Task]:
    for tasks in groups.values():
        yield from (task for task in tasks if task.alternative)


@pytest.mark.slow
def test_random_candidates_are_right_and_can_be_said(groups: dict[str, list[Task]]) -> None:
    rng = Random(0)
    for task in _alternatives(groups):
        (arguments, want), space = direct_outputs(task, INFO), TaskSpace(task)
        assert len(space.sketches) == (1 if _is_grouped(task) else 2)
        for sketch in space.sketches:
            for _ in range(3):
                candidate = _valid(space, rng, sketch.index)
                assert decode(space.sketches, encode(sketch, candidate), task.id) == candidate
                final = space.finish(candidate).mod
                trace = space.trace_json(candidate)
                again = apply_trace.build_module(space.module, trace, TARGET)
                assert tvm_ffi.structural_equal(final, again)
            got = run(final, arguments, INFO)
            assert np.abs(got - want).max() < 1e-3 * np.abs(want).max()


@pytest.mark.slow
def test_a_model_uses_the_chosen_alternatives_and_their_records(
    source: SourceModel, model: LoweredModel, groups: dict[str, list[Task]], tmp_path: Path
) -> None:
    chosen = {key: tasks[0] for key, tasks in groups.items()}
    assert any(task.alternative for task in chosen.values())
    chosen = {key: task for key, task in chosen.items() if task.alternative}
    database, rng = metaschedule_files.create(tmp_path), Random(1)
    for task in [*model.tasks, *chosen.values()]:
        space = TaskSpace(task)
        trace = space.trace_json(_valid(space, rng))
        metaschedule_files.commit(database, task, trace, 1e-3, TARGET)
    lowered = substitute(model.lowered, chosen)
    names = {var.name_hint for var in lowered.functions}
    assert {task.name for task in chosen.values()} <= names
    compiled = lowering.compile_model(lowered, TARGET, database)
    assert compiled.missing == [] and compiled.functions == compiled.functions_with_record
    assert substitute(model.lowered, {}) is model.lowered
    plain = lowering.compile_model(model.lowered, TARGET, database)  # a user of TVM alone
    assert plain.missing == []
    inputs = source.random_inputs(3)
    assert source.reference is not None
    want = source.reference(*inputs)[0]
    results = [_outputs_without_tlmd(lowered, inputs, tmp_path)]
    for one in (compiled, plain):
        machine = relax.VirtualMachine(one.executable, tvm.cpu())
        results.append(machine["main"](*map(tvm.runtime.tensor, inputs))[0].numpy())
    for got in results:
        assert np.abs(got - want).max() < 1e-3 * np.abs(want).max()


_WITHOUT_TLMD = """
import sys
sys.modules["tlmd"] = None
import json, pathlib
import numpy as np
if pathlib.Path("intrinsics.py").exists():
    import intrinsics
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

module = tvm.ir.load_json(pathlib.Path("lowered.json").read_text())
target = tvm.target.Target(json.loads(sys.argv[1]))
database = ms.database.JSONDatabase(work_dir=".")
with target, database, tvm.ir.transform.PassContext(opt_level=3):
    module = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(module)
left = [v.name_hint for v, f in module.functions.items()
        if isinstance(f, tvm.tirx.PrimFunc) and not f.attrs.get("tirx.is_scheduled")]
assert not left, left
machine = relax.VirtualMachine(tvm.compile(module, target), tvm.cpu())
inputs = np.load("inputs.npz")
outputs = machine["main"](*(tvm.runtime.tensor(inputs[name]) for name in inputs.files))
np.save("got.npy", outputs[0].numpy())
"""


def _outputs_without_tlmd(lowered: Any, inputs: Any, folder: Path) -> Any:
    """What a process computes that has TVM, the lowered module and the database."""
    lowering.save(lowered, folder / "lowered.json")
    metaschedule_files.write_intrinsics(folder)
    np.savez(folder / "inputs.npz", *inputs)
    command = [sys.executable, "-c", _WITHOUT_TLMD, str(TARGET)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return np.load(folder / "got.npy")


def _valid(space: TaskSpace, rng: Random, sketch: int | None = None) -> Any:
    while True:
        candidate = space.random(rng, sketch)
        try:
            space.finish(candidate)
        except apply_trace.InvalidCandidate:
            continue
        return candidate


@pytest.mark.slow
def test_candidates_are_compared_with_the_direct_program(
    groups: dict[str, list[Task]], tmp_path: Path
) -> None:
    right = next(task for task in _alternatives(groups) if "relu" in task.name)
    wrong = replace(right, id="wrong", group="wrong-direct", direct=_negated(right.direct))
    with Measurer(plan_cores(run=1), tmp_path, MeasureConfig(repeats=3)) as measurer:
        for task, status in ((right, Status.OK), (wrong, Status.WRONG_OUTPUT)):
            assert np.isfinite(measurer.baseline(task).seconds)
            space = TaskSpace(task)
            candidate = _valid(space, Random(2))
            trial = MeasureInput(candidate.id, space.trace_json(candidate))
            (outcome,) = measurer.measure(task, (trial,))
            assert outcome.status is status, outcome
            assert outcome.verified is (status is Status.OK)


@pytest.mark.slow
def test_alternatives_are_timed_in_the_same_rounds(
    groups: dict[str, list[Task]], tmp_path: Path
) -> None:
    tasks = next(group for group in groups.values() if len(group) > 1)
    candidates = [_valid(TaskSpace(task), Random(2)) for task in tasks]
    inputs = [
        MeasureInput(c.id, TaskSpace(task).trace_json(c))
        for task, c in zip(tasks, candidates, strict=True)
    ]
    finalists = list(zip(tasks, inputs, strict=True))
    with Measurer(plan_cores(run=1), tmp_path, MeasureConfig(repeats=3)) as measurer:
        alone = [measurer.measure(task, [given])[0] for task, given in finalists]
        together = measurer.compare(finalists)
    assert len(together) == len(tasks) > 1
    assert all(outcome.ok and outcome.compared for outcome in together)
    # Each ran its own program: a clear order is the same in both.
    for (a, b), (c, d) in zip(pairwise(alone), pairwise(together), strict=True):
        if not 0.3 < a.seconds / b.seconds < 3:
            assert (a.seconds < b.seconds) is (c.seconds < d.seconds)


def _negated(direct: str) -> str:
    """Another program with the same arguments: each ReLU becomes a minimum."""
    function = tvm.ir.load_json(direct)["main"]

    def smaller(node: Any) -> Any:
        return tvm.tirx.Min(node.a, node.b)

    body = tvm_ffi.structural_map(function.body, (tvm.tirx.Max, smaller))
    return str(tvm.ir.save_json(tvm.IRModule({"main": function.with_body(body)})))
