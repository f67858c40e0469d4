"""The same candidates timed by tlmd and by MetaSchedule's stock builder and runner.

Each works in a process of its own on the same cores. Loading TVM and starting workers is not
counted. `benchmarks.peer` says what differs from the stock builder.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import peer, pinned
from tlmd.data import wire
from tlmd.data.selection import retimed
from tlmd.data.types import Candidate, MeasureInput, Outcome, Record, Task
from tlmd.measure.measurer import Measurer
from tlmd.pipeline.task_groups import TaskGroup
from tlmd.pipeline.task_state import TaskState
from tlmd.processes import children

RUNNERS = ("tlmd", "stock")


@dataclass(frozen=True)
class CandidateBatch:
    """Candidates of one task with their traces (as in `Proposal`)."""

    task: Task
    candidates: tuple[Candidate, ...]
    traces: tuple[str, ...]


@dataclass(frozen=True)
class RunnerResult:
    """What a runner measured of a batch."""

    seconds: tuple[float, ...]
    """Per candidate; infinite where it failed."""
    best: int
    """Index of the candidate that the runner chose."""
    wall_s: float
    stages: dict[str, float]
    """Mean seconds of each stage of a candidate; in ``run`` it held the slot."""


def mixed_candidates(
    task: Task, count: int, written: int, checkpoint: Any, seed: int
) -> CandidateBatch:
    """`count` distinct candidates: the TLM writes `written` of them, the rest are random."""
    from benchmarks.common import setting
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
    return CandidateBatch(task, tuple(c for c, _ in chosen), tuple(t for _, t in chosen))


def run_runner(
    runner: str,
    batches: Sequence[CandidateBatch],
    cores: tuple[int, ...],
    environment: Mapping[str, str] | None = None,
) -> list[RunnerResult]:
    """Time the batches with `runner`, one after the other, on `cores`; `environment` is added."""
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        given = Path(scratch) / "batches"
        given.write_bytes(wire.pack(list(batches)))
        changed = children.environment(**(environment or {}))
        output = pinned.run("runners", runner, given, cores=cores, environment=changed)
    lines = [line for line in output.splitlines() if line.startswith("[[")]
    return [
        RunnerResult(tuple(float(s) for s in seconds), best, wall, stages)
        for seconds, best, wall, stages in json.loads(lines[-1])
    ]


def _tlmd(batches: Sequence[CandidateBatch], scratch: Path) -> list[Any]:
    """The measurer as the daemon uses it."""
    from tlmd.measure.cores.core_plan import plan_cores

    results = []
    with Measurer(plan_cores(run=1), scratch) as measurer:
        measurer.start(batches[0].task.target)
        for batch in batches:
            begin = time.perf_counter()
            state = _compared(measurer, batch)
            wall = time.perf_counter() - begin
            found = {r.candidate.id: r.outcome for r in state.records}
            outcomes = [found[c.id] for c in batch.candidates]
            timings = [asdict(o.timing) for o in outcomes]
            stages = {k: sum(t[k] for t in timings) / len(timings) for k in timings[0]}
            best = batch.candidates.index(state.best.candidate) if state.best else 0
            results.append(([o.seconds for o in outcomes], best, wall, stages))
    return results


def _compared(measurer: Measurer, batch: CandidateBatch) -> TaskState:
    """Measure every candidate with the fastest one before it as incumbent; compare the finalists.

    The pipeline does the same.
    """
    state = TaskState(batch.task, [])
    traces = {c.id: t for c, t in zip(batch.candidates, batch.traces, strict=True)}
    waiting = iter(batch.candidates)
    in_flight: dict[Future[Outcome], Candidate] = {}
    while True:
        for candidate in itertools.islice(waiting, measurer.builders - len(in_flight)):
            best = state.best.outcome.seconds if state.best else None
            given = MeasureInput(candidate.id, traces[candidate.id], best)
            in_flight[measurer.submit(batch.task, given)] = candidate
        if not in_flight:
            break
        for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
            state.add([Record(in_flight.pop(future), future.result())])
    group = TaskGroup(batch.task.computation, batch.task.weight, [state])
    while finalists := group.begin_comparison():
        inputs = [MeasureInput(r.candidate.id, traces[r.candidate.id]) for r in finalists]
        outcomes = measurer.compare([(batch.task, given) for given in inputs])
        pairs, now = zip(finalists, outcomes, strict=bool(outcomes)), time.time()
        state.replace([retimed(r, o, now, r.batch) for r, o in pairs])
    return state


def _stock(batches: Sequence[CandidateBatch], scratch: Path) -> list[Any]:
    """`LocalBuilder` with a worker per core, then `LocalRunner`, both as `tune_tir` uses them."""
    from tvm.s_tir import meta_schedule as ms

    from tlmd.space import apply_trace as schedules

    peer.register_intrinsics()
    builder, runner = peer.stock_builder(), ms.runner.LocalRunner()
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
        seconds = _mean_seconds(built, iter([f.result() for f in futures]))
        wall = time.perf_counter() - begin
        if number:
            build = half - begin
            stages = {"build": build / len(seconds), "run": (wall - build) / len(seconds)}
            results.append((seconds, seconds.index(min(seconds)), wall, stages))
    return results


def _mean_seconds(built: Sequence[Any], ran: Iterator[Any]) -> list[float]:
    """Mean seconds of every candidate; `ran` has a result for each one that was built."""
    seconds = []
    for b in built:
        result = next(ran) if b.artifact_path is not None else None
        samples = [float(s) for s in (result.run_secs if result else None) or ()]
        if not samples:
            print(b.error_msg or (result and result.error_msg), file=sys.stderr)
        seconds.append(sum(samples) / len(samples) if samples else float("inf"))
    return seconds


def _arguments(module: Any) -> Any:
    """Arguments of the scheduled module, where weights may have another layout."""
    from tvm.s_tir import meta_schedule as ms

    return ms.arg_info.ArgInfo.from_entry_func(module, remove_preproc=True)


def _run_here(runner: str, given: Path) -> None:
    batches = wire.unpack(tuple[CandidateBatch, ...], given.read_bytes())  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        results = {"tlmd": _tlmd, "stock": _stock}[runner](batches, Path(scratch))
    print(json.dumps(results))


if __name__ == "__main__":
    _run_here(sys.argv[1], Path(sys.argv[2]))
