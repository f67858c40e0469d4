"""MetaSchedule as it comes: its builder, its programs, and what its `tune_tir` finds.

It is spared one thing: its builders do not load the intrinsics of every architecture (24 s, and on
a busy machine its time limit for a build).
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


def tune(task: Task, trials: int, seed: int, cores: tuple[int, ...]) -> Candidate | None:
    """The fastest candidate of `trials` by MetaSchedule's search; None where nothing ran."""
    from tlmd.daemon.interchange import import_database

    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        place = Path(scratch)
        (place / "task").write_bytes(wire.pack(task))
        pinned.run("peer", place, str(trials), str(seed), cores=cores)
        _, records, _ = import_database(place / "database", task.target)
    if not records:
        return None
    best = min(records, key=lambda r: r.outcome.seconds).candidate
    return Candidate(task.id, best.sketch, best.decisions)


def builder() -> Any:
    """`LocalBuilder` with a worker per core."""
    from tvm.s_tir import meta_schedule as ms

    workers = len(os.sched_getaffinity(0))
    return ms.builder.LocalBuilder(max_workers=workers, initializer=register_intrinsics)


def program(task: Task) -> tuple[Any, Any]:
    """The task's module as MetaSchedule wants it, and its target."""
    import tvm

    module = tvm.ir.load_json(task.module)
    module = tvm.IRModule({"main": module["main"].with_attr("global_symbol", "main")})
    return module, tvm.target.Target(json.loads(task.target.spec))


def register_intrinsics() -> None:
    """Those of this architecture."""
    from tlmd.space import intrinsics

    intrinsics.register(platform.machine())


def _main(place: Path, trials: int, seed: int) -> None:
    from tvm.s_tir import meta_schedule as ms

    register_intrinsics()
    module, target = program(wire.unpack(Task, (place / "task").read_bytes()))
    ms.tune_tir(
        module,
        target,
        str(place / "database"),
        max_trials_global=trials,
        builder=builder(),
        num_tuning_cores=len(os.sched_getaffinity(0)),
        seed=seed,
    )


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
