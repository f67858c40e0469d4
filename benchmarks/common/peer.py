"""Stock MetaSchedule: its builder, its programs, and the best candidate that its `tune_tir` finds.

One thing differs from stock, in its favour: its builders load the intrinsics of this architecture
only. All architectures take 24 s, which on a busy machine exceeds the time limit of a build.
`post_optimization=True` of `tune_tir` ends with `PostOpt`, and so does `search` after it has taken
the best program so far; one search gives both figures.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import pinned
from tlmd.data import wire
from tlmd.data.types import Candidate, Task

STOCK, TLM = "stock", "tlm"


@dataclass(frozen=True)
class Search:
    """What a search has found."""

    best: Candidate | None
    """The fastest program; None where none of them ran."""
    seconds: float
    optimized: str = ""
    """Trace of the fastest program after the post-optimization, without postprocessors; empty where
    that found no faster one."""
    optimized_seconds: float = 0.0
    """Seconds of the search and the post-optimization."""


def tune(
    task: Task, trials: int, seed: int, cores: tuple[int, ...], strategy: str = STOCK
) -> Candidate | None:
    """The fastest of `trials` candidates of MetaSchedule's search; None where none of them ran.

    `strategy` is MetaSchedule's own, or the TLM inside MetaSchedule.
    """
    return search(task, trials, seed, cores, strategy).best


def search(
    task: Task,
    trials: int,
    seed: int,
    cores: tuple[int, ...],
    strategy: str = STOCK,
    optimize: bool = False,
) -> Search:
    """Search as `tune` does; `optimize`: and then run MetaSchedule's post-optimization."""
    from tlmd.client.commands.interchange import import_database

    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        directory = Path(scratch)
        (directory / "task").write_bytes(wire.pack(task))
        after = str(directory / "optimized") if optimize else ""
        pinned.run("peer", directory, str(trials), str(seed), strategy, after, cores=cores)
        _, records, _ = import_database(directory / "database", task.target)
        trace = _last_trace(directory / "database", Path(after)) if optimize else ""
        seconds = json.loads((directory / "seconds").read_text())
    if not records:
        return Search(None, seconds[0])
    best = min(records, key=lambda r: r.outcome.seconds).candidate
    return Search(Candidate(task.id, best.sketch, best.decisions), seconds[0], trace, seconds[1])


def _last_trace(before: Path, after: Path) -> str:
    """What the post-optimization has added, where it is faster than all before."""
    from tlmd.records import metaschedule_files

    known = [e.seconds for e in metaschedule_files.read(before) if e.seconds is not None]
    *_, last = metaschedule_files.read(after)
    if last.seconds is None or last.seconds >= min(known):
        return ""
    instructions, decisions = json.loads(json.dumps(last.trace.as_json()))
    names = [instruction[0] for instruction in instructions]
    end = names.index("EnterPostproc") if "EnterPostproc" in names else len(names)
    return json.dumps([instructions[:end], [d for d in decisions if d[0] < end]])


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


def _tune_here(directory: Path, trials: int, seed: int, strategy: str, after: str) -> None:
    from tvm.s_tir import meta_schedule as ms

    from tlmd.integrations import TLMSearchStrategy

    begin = time.monotonic()
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
    seconds = [time.monotonic() - begin]
    if after:
        # `PostOpt` makes a `LocalBuilder` for each of its batches.
        builder = functools.partial(ms.builder.LocalBuilder, initializer=register_intrinsics)
        ms.builder.LocalBuilder = builder
        shutil.copytree(directory / "database", after)
        ms.post_optimization.PostOpt(after, target).run()
    seconds.append(time.monotonic() - begin)
    (directory / "seconds").write_text(json.dumps(seconds))


if __name__ == "__main__":
    _tune_here(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
