"""The same candidates timed by tlmd and by MetaSchedule's stock builder and runner.

Each works in a process of its own on the same cores. Loading TVM and starting workers count for
neither. The stock builder is spared one thing that it does as it comes: its workers load the
intrinsics of every architecture (24 s, and on a busy machine its time limit for a build).
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import peer, pinned
from tlmd import children, wire
from tlmd.pipeline.jobs import TaskState
from tlmd.ranking import retimed
from tlmd.types import Candidate, Record, Task

RUNNERS = ("tlmd", "stock")


@dataclass(frozen=True)
class Batch:
    """Candidates of one task with their traces, as `Proposal` has them."""

    task: Task
    candidates: tuple[Candidate, ...]
    traces: tuple[str, ...]


@dataclass(frozen=True)
class Timed:
    """What a runner said of a batch: seconds per candidate (infinite: failed), and its choice.

    ``stages`` are seconds per candidate; ``run`` is for how long it had the slot.
    """

    seconds: tuple[float, ...]
    best: int
    wall_s: float
    stages: dict[str, float]


def candidates(task: Task, count: int, written: int, checkpoint: Any, seed: int) -> Batch:
    """`count` distinct candidates, `written` of them picked by TLM and ranker, the rest random."""
    from benchmarks import setting
    from tlmd.generate.generator import Generator

    generator = Generator(checkpoint, seed=seed)
    proposals, _ = generator.write(task, written, []) if written else ([], [])
    found = {p.module_hash: (p.candidate, p.trace) for p in proposals}
    for drawn in setting.random_programs(task, 20 * count, seed):
        if len(found) >= count:
            break
        found.setdefault(drawn.module_hash, (drawn.candidate, drawn.trace))
    chosen = list(found.values())
    random.Random(seed).shuffle(chosen)
    return Batch(task, tuple(c for c, _ in chosen), tuple(t for _, t in chosen))


def measure(
    runner: str,
    batches: Sequence[Batch],
    cores: tuple[int, ...],
    environment: Mapping[str, str] | None = None,
) -> list[Timed]:
    """Have `runner` time the batches one after the other, on `cores`; `environment` is added."""
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        given = Path(scratch) / "batches"
        given.write_bytes(wire.pack(list(batches)))
        changed = children.environment(**(environment or {}))
        said = pinned.run("runners", runner, given, cores=cores, environment=changed)
    lines = [line for line in said.splitlines() if line.startswith("[[")]
    return [
        Timed(tuple(float(s) for s in seconds), best, wall, stages)
        for seconds, best, wall, stages in json.loads(lines[-1])
    ]


def _tlmd(batches: Sequence[Batch], scratch: Path) -> list[Any]:
    """The measurer as the daemon uses it, told of the best candidate so far."""
    from tlmd.config import MeasureConfig
    from tlmd.measure.client import Measurer
    from tlmd.measure.cores import plan_cores

    config = MeasureConfig()
    layout = plan_cores()
    results = []
    with Measurer(
        batches[0].task.target, layout, scratch, builders=config.builders, lend=config.lend
    ) as measurer:
        for batch in batches:
            begin = time.perf_counter()
            state = _raced(measurer, batch)
            wall = time.perf_counter() - begin
            found = {r.candidate.id: r.outcome for r in state.records}
            outcomes = [found[c.id] for c in batch.candidates]
            timings = [asdict(o.timing) for o in outcomes]
            stages = {k: sum(t[k] for t in timings) / len(timings) for k in timings[0]}
            best = batch.candidates.index(state.best.candidate) if state.best else 0
            results.append(([o.seconds for o in outcomes], best, wall, stages))
    return results


def _raced(measurer: Any, batch: Batch) -> TaskState:
    """Every candidate against the fastest before it, then the finalists, as in the pipeline."""
    from tlmd.measure.client import Job

    state = TaskState(batch.task, [])

    def jobs() -> Any:
        for candidate, trace in zip(batch.candidates, batch.traces, strict=True):
            best = state.best.outcome.seconds if state.best else None
            yield Job(batch.task, candidate, trace, best)

    for job, outcome in measurer.measure(jobs()):
        state.add([Record(job.candidate, outcome)])
    while racers := state.begin_race():
        outcomes = measurer.final(batch.task, [r.candidate for r in racers])
        pairs, now = zip(racers, outcomes, strict=bool(outcomes)), time.time()
        state.refresh(retimed(r, o, now, r.batch) for r, o in pairs)
    return state


def _stock(batches: Sequence[Batch], scratch: Path) -> list[Any]:
    """`LocalBuilder` with a worker per core, then `LocalRunner`, both as `tune_tir` has them."""
    from tvm.s_tir import meta_schedule as ms

    from tlmd.space import schedule as schedules

    peer.register_intrinsics()
    builder, runner = peer.builder(), ms.runner.LocalRunner()
    results = []
    for number, batch in enumerate((batches[0], *batches)):
        module, target = peer.program(batch.task)
        modules = [schedules.build_module(module, t, target) for t in batch.traces]
        if not number:  # starts the workers
            modules = modules[: 2 * len(os.sched_getaffinity(0))]
        begin = time.perf_counter()
        built = builder.build([ms.builder.BuilderInput(m, target) for m in modules])
        half = time.perf_counter()
        futures = runner.run(
            [
                ms.runner.RunnerInput(b.artifact_path, "cpu", _arguments(module))
                for module, b in zip(modules, built, strict=True)
                if b.artifact_path is not None
            ]
        )
        ran = iter([f.result() for f in futures])
        seconds = []
        for b in built:
            result = next(ran) if b.artifact_path is not None else None
            samples = [float(s) for s in (result.run_secs if result else None) or ()]
            if not samples:
                print(b.error_msg or (result and result.error_msg), file=sys.stderr)
            seconds.append(sum(samples) / len(samples) if samples else float("inf"))
        wall = time.perf_counter() - begin
        if number:
            build = half - begin
            stages = {"build": build / len(seconds), "run": (wall - build) / len(seconds)}
            results.append((seconds, seconds.index(min(seconds)), wall, stages))
    return results


def _arguments(module: Any) -> Any:
    """Of the scheduled module: weights may have another layout there."""
    from tvm.s_tir import meta_schedule as ms

    return ms.arg_info.ArgInfo.from_entry_func(module, remove_preproc=True)


def _main(runner: str, given: Path) -> None:
    batches = wire.unpack(tuple[Batch, ...], given.read_bytes())  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        results = {"tlmd": _tlmd, "stock": _stock}[runner](batches, Path(scratch))
    print(json.dumps(results))


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
