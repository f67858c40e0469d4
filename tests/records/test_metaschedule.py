"""MetaSchedule's own databases become candidates: equal traces, equal programs."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule, Trace
from tvm.s_tir import meta_schedule as ms

from tests.support import modules
from tlmd.client.commands import interchange
from tlmd.data.computation import DecisionKind
from tlmd.data.errors import BadInput
from tlmd.records import metaschedule_files
from tlmd.space import intrinsics
from tlmd.space.apply_trace import InvalidCandidate
from tlmd.space.hardware.target import resolve, tvm_target
from tlmd.space.importing import candidate_of
from tlmd.space.space import TaskSpace

TASKS = [modules.gemm(), modules.convolution(), modules.softmax(), modules.elementwise()]


@derived_object
class NoBuilder(ms.builder.PyBuilder):  # type: ignore[misc]
    def build(self, inputs: list[Any]) -> list[Any]:
        return [ms.builder.BuilderResult("nowhere", None) for _ in inputs]


@derived_object
class NoRun(ms.runner.PyRunnerFuture):  # type: ignore[misc]
    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return ms.runner.RunnerResult([2e-3, 1e-3], None)


@derived_object
class NoRunner(ms.runner.PyRunner):  # type: ignore[misc]
    def run(self, inputs: list[Any]) -> list[Any]:
        return [NoRun() for _ in inputs]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database by MetaSchedule itself; only building and running are left out."""
    intrinsics.register(modules.native().arch)
    directory = tmp_path_factory.mktemp("stock")
    ms.tune_tir(
        tvm.ir.load_json(modules.gemm().module),
        tvm_target(modules.native()),
        str(directory),
        max_trials_global=8,
        num_trials_per_iter=4,
        builder=NoBuilder(),
        runner=NoRunner(),
        cost_model="random",
        strategy="replay-trace",  # evolution takes seconds and makes no other files
        measure_callbacks=[ms.measure_callback.AddToDatabase()],
        num_tuning_cores=1,
        seed=3,
    )
    return directory


def test_a_database_of_metaschedule_is_read(stock: Path) -> None:
    lines = (stock / metaschedule_files.RECORDS).read_text().splitlines()
    (task,), records, skipped = interchange.import_database(stock, modules.native())
    assert len(lines) == 8 and len(records) == 8 and skipped == 0
    assert task.flops > 0 and task.target == modules.native()
    assert {r.outcome.seconds for r in records} == {1e-3}
    assert {r.fingerprint for r in records} == {modules.native().fingerprint}
    space = TaskSpace(task)
    assert all(space.finish(r.candidate) for r in records)


def test_another_machine_is_told_apart(stock: Path) -> None:
    spec = {**json.loads(modules.native().spec), "num-cores": 4}
    info = resolve(json.dumps(spec))
    # Its parallel extents have other options; those that make equal programs stand for them.
    _, records, _ = interchange.import_database(stock, info)
    assert records and all(r.fingerprint != info.fingerprint for r in records)
    for record in records:
        slots = TaskSpace(modules.gemm()).sketches[record.candidate.sketch].open_decisions
        at = [i for i, s in enumerate(slots) if s.kind is DecisionKind.PARALLEL]
        assert all(record.candidate.decisions[i][0] in (0, 4, 8, 16, 32, 64) for i in at)


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_traces_are_told_from_what_they_do(task: Any) -> None:
    space, rng = TaskSpace(task), Random(5)
    for _ in range(10):
        candidate = space.random(rng)
        try:
            final = space.finish(candidate)
        except InvalidCandidate:
            continue
        assert candidate_of(space, final.trace) == candidate
        before = Schedule(space.module)
        Trace.apply_json_to_schedule(json.loads(space.trace_json(candidate)), before)
        assert candidate_of(space, before.trace) == candidate


def test_a_trace_of_another_space_is_no_candidate() -> None:
    other = TaskSpace(modules.softmax())
    trace = other.finish(other.random(Random(1))).trace
    assert candidate_of(TaskSpace(modules.gemm()), trace) is None


@pytest.mark.parametrize("name", [metaschedule_files.WORKLOADS, metaschedule_files.RECORDS])
def test_damage_is_one_line(stock: Path, tmp_path: Path, name: str) -> None:
    whole = {
        n: (stock / n).read_bytes()
        for n in (metaschedule_files.WORKLOADS, metaschedule_files.RECORDS)
    }
    rng = Random(6)
    for kind in range(12):
        damaged = bytearray(whole[name])
        if kind % 3 == 0:
            del damaged[rng.randrange(1, len(damaged) - 1) :]
        elif kind % 3 == 1:
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        else:
            at = rng.randrange(len(damaged))
            del damaged[at : at + rng.randrange(1, 30)]
        for n, data in whole.items():
            (tmp_path / n).write_bytes(bytes(damaged) if n == name else data)
        try:
            list(metaschedule_files.read(tmp_path))
        except BadInput as error:
            assert "\n" not in str(error) and "damaged" in str(error)
