"""Stock MetaSchedule: its builder, its programs, and the best candidate that its `tune_tir` finds.

One thing differs from stock, in its favour: its builders load the intrinsics of this architecture
only. All architectures take 24 s, which on a busy machine exceeds the time limit of a build.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import pinned
from tlmd import wire
from tlmd.types import Candidate, Task

STOCK, TLM = "stock", "tlm"


def tune(
    task: Task, trials: int, seed: int, cores: tuple[int, ...], strategy: str = STOCK
) -> Candidate | None:
    """The fastest of `trials` candidates of MetaSchedule's search; None where none of them ran.

    `strategy` is MetaSchedule's own, or the TLM inside MetaSchedule.
    """
    from tlmd.client.interchange import import_database

    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        directory = Path(scratch)
        (directory / "task").write_bytes(wire.pack(task))
        pinned.run("peer", directory, str(trials), str(seed), strategy, cores=cores)
        _, records, _ = import_database(directory / "database", task.target)
    if not records:
        return None
    best = min(records, key=lambda r: r.outcome.seconds).candidate
    return Candidate(task.id, best.sketch, best.decisions)


def stock_builder() -> Any:
    """`LocalBuilder` with a worker per core."""
    from tvm.s_tir import meta_schedule as ms

    workers = len(os.sched_getaffinity(0))
    return ms.builder.LocalBuilder(max_workers=workers, initializer=register_intrinsics)


def program(task: Task) -> tuple[Any, Any]:
    """The task's module with the name that MetaSchedule expects, and its target."""
    import tvm

    module = tvm.ir.load_json(task.module)
    module = tvm.IRModule({"main": module["main"].with_attr("global_symbol", "main")})
    return module, tvm.target.Target(json.loads(task.target.spec))


def register_intrinsics() -> None:
    """Register the intrinsics of this architecture."""
    from tlmd.space import intrinsics

    intrinsics.register(platform.machine())


def _tune_here(directory: Path, trials: int, seed: int, strategy: str) -> None:
    from tvm.s_tir import meta_schedule as ms

    from tlmd.integrations import TLMSearchStrategy

    register_intrinsics()
    module, target = program(wire.unpack(Task, (directory / "task").read_bytes()))
    ms.tune_tir(
        module,
        target,
        str(directory / "database"),
        max_trials_global=trials,
        builder=stock_builder(),
        num_tuning_cores=len(os.sched_getaffinity(0)),
        seed=seed,
        strategy="evolutionary" if strategy == STOCK else TLMSearchStrategy(),
    )


if __name__ == "__main__":
    _tune_here(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
