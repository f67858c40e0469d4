"""The TLM as a search strategy of MetaSchedule, which builds and runs in this process here."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tlmd.integrations import TLMSearchStrategy
from tlmd.space import intrinsics
from tlmd.space.hardware import target as targets

pytestmark = pytest.mark.slow


class Ready:
    """A result that is there already, where MetaSchedule expects one that will come."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self._result


@derived_object
class Future(ms.runner.PyRunnerFuture):  # type: ignore[misc]
    def __init__(self, result: Any) -> None:
        self._ready = Ready(result)

    def done(self) -> bool:
        return self._ready.done()

    def result(self) -> Any:
        return self._ready.result()


@derived_object
class Builder(ms.builder.PyBuilder):  # type: ignore[misc]
    """Checks that TVM can compile each candidate."""

    def build(self, build_inputs: Any) -> Any:
        for one in build_inputs:
            tvm.compile(one.mod, one.target)
        # MetaSchedule removes the folder of each program when it has run.
        folders = [tempfile.mkdtemp() for _ in build_inputs]
        return [ms.builder.BuilderResult(f"{folder}/built", None) for folder in folders]


@derived_object
class Runner(ms.runner.PyRunner):  # type: ignore[misc]
    """The first candidate fails, the others get slower."""

    def __init__(self) -> None:
        self._count = 0

    def run(self, runner_inputs: Any) -> Any:
        found = []
        for _ in runner_inputs:
            self._count += 1
            failed = self._count == 1
            result = ms.runner.RunnerResult(
                None if failed else [1e-3 * self._count], "no luck" if failed else None
            )
            found.append(Future(result))
        return found


def test_tune_tir_with_the_strategy(untrained: Path, tmp_path: Path) -> None:
    a, b = te.placeholder((32, 64), name="a"), te.placeholder((64, 48), name="b")
    k = te.reduce_axis((0, 64), name="k")
    product = te.compute((32, 48), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    logging.getLogger("tvm.s_tir.meta_schedule").addHandler(logging.NullHandler())
    target = targets.resolve("native", 1)
    intrinsics.register(target.arch)  # MetaSchedule would register those of all targets: 25 s
    database = ms.tune_tir(
        te.create_prim_func([a, b, product]),
        targets.tvm_target(target),
        str(tmp_path),
        max_trials_global=10,
        num_trials_per_iter=4,
        builder=Builder(),
        runner=Runner(),
        strategy=TLMSearchStrategy(untrained, seed=1),
    )
    records = database.get_all_tuning_records()
    assert len({str(record.trace) for record in records}) == len(records) == 10
    best = database.get_top_k(records[0].workload, 1)[0]
    assert float(best.run_secs[0]) == pytest.approx(2e-3)
    assert any(inst.kind.name == "SamplePerfectTile" for inst in best.trace.insts)
