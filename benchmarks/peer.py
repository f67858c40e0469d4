"""MetaSchedule's `tune_tir` as it comes, in a process of its own, and the best program it found.

It is spared one thing: its builders do not load the intrinsics of every architecture (24 s, and on
a busy machine its time limit for a build).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from tlmd import children
from tlmd.types import Candidate, Task


def tune(task: Task, trials: int, seed: int, cores: tuple[int, ...]) -> Candidate | None:
    """The fastest candidate of `trials` by MetaSchedule's search; None where nothing ran."""
    from tlmd.daemon.interchange import import_database

    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        place = Path(scratch)
        (place / "module.json").write_text(task.module)
        numbers = (str(trials), str(seed))
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.peer", scratch, task.target.spec, *numbers],
            env=children.environment(),
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        if done.returncode:
            raise SystemExit(f"tune_tir failed on {task.name}: {done.stderr[-500:]}")
        _, records, _ = import_database(place / "database", task.target)
    if not records:
        return None
    best = min(records, key=lambda r: r.outcome.seconds).candidate
    return Candidate(task.id, best.sketch, best.decisions)


def _register_intrinsics() -> None:
    from tlmd.space import intrinsics

    intrinsics.register(platform.machine())


def _main(place: Path, spec: str, trials: int, seed: int) -> None:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    _register_intrinsics()
    module = tvm.ir.load_json((place / "module.json").read_text())
    module = tvm.IRModule({"main": module["main"].with_attr("global_symbol", "main")})
    workers = len(os.sched_getaffinity(0))
    ms.tune_tir(
        module,
        tvm.target.Target(json.loads(spec)),
        str(place / "database"),
        max_trials_global=trials,
        builder=ms.builder.LocalBuilder(max_workers=workers, initializer=_register_intrinsics),
        num_tuning_cores=workers,
        seed=seed,
    )


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
