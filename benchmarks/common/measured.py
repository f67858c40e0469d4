"""Measuring as the daemon does: proposals become records, finalists are timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.data.types import (
    Candidate,
    MeasureInput,
    Outcome,
    Proposal,
    Record,
    Status,
    TargetInfo,
    Task,
)
from tlmd.space.space import TaskSpace

if TYPE_CHECKING:
    from tlmd.data.config import GenerateConfig
    from tlmd.generate.generator import Generator
    from tlmd.measure.measurer import Measurer
    from tlmd.records.store import RecordStore
    from tlmd.tlm.checkpoint import Checkpoint

_PER_TURN = 8


def measure_proposals(measurer: Any, task: Task, proposals: Sequence[Proposal]) -> list[Record]:
    """The records of these proposals, in their order."""
    inputs = [MeasureInput(p.candidate.id, p.trace) for p in proposals]
    return [
        Record(
            p.candidate,
            outcome,
            version=p.version,
            fingerprint=task.target.fingerprint,
            module_hash=p.module_hash,
            created=time.time(),
            features=p.features,
            writer=p.writer,
        )
        for p, outcome in zip(proposals, measurer.measure(task, inputs), strict=True)
    ]


def compare_finalists(
    measurer: Any, task: Task, candidates: Iterable[Candidate], others: Iterable[MeasureInput] = ()
) -> dict[str, Outcome]:
    """Outcomes by the candidates' ids; all distinct ones are timed in interleaved rounds.

    ``others`` are further programs. Where there is one distinct program, it is timed alone. Ends
    the benchmark where they cannot be compared.
    """
    space = TaskSpace(task)
    finalists = {c.id: MeasureInput(c.id, space.trace_json(c)) for c in candidates}
    finalists |= {given.candidate_id: given for given in others}
    if len(finalists) == 1:
        found = measurer.measure(task, list(finalists.values()))
    else:
        found = measurer.compare([(task, given) for given in finalists.values()])
    if not found:
        raise SystemExit(f"the finalists of {task.name} could not be compared")
    return dict(zip(finalists, found, strict=True))


def race(
    measurer: Any, task: Task, runs: Mapping[str, Sequence[Record]], counts: Sequence[int]
) -> dict[str, dict[int, float]]:
    """Seconds of the best of the first so many records of each run, timed in interleaved rounds.

    Where none of the first so many was right, the next right one counts.
    """
    best = {name: {k: _best(records, k) for k in counts} for name, records in runs.items()}
    found = compare_finalists(measurer, task, [c for of in best.values() for c in of.values()])
    return {
        name: {k: min(found[of[j].id].seconds for j in counts if j <= k) for k in counts}
        for name, of in best.items()
    }


def _best(records: Sequence[Record], count: int) -> Candidate:
    right = [record for record in records[:count] if record.outcome.ok]
    right = right or [record for record in records if record.outcome.ok][:1]
    if not right:
        raise SystemExit("no candidate of a run was right")
    return min(right, key=lambda record: record.outcome.seconds).candidate


def searched(
    measurer: Measurer,
    task: Task,
    checkpoint: Checkpoint,
    trials: int,
    seed: int,
    config: GenerateConfig | None = None,
) -> list[Record]:
    """The records of one search as the daemon does it, without fine-tuning, in their order."""
    from tlmd.generate.generator import Generator

    generator = Generator(checkpoint, config, seed)
    records: list[Record] = []
    while len(records) < trials:
        written, _ = generator.write(task, min(_PER_TURN, trials - len(records)), records)
        if not written:
            break
        records += measure_proposals(measurer, task, written)
    return records


@contextmanager
def on_one_core(state: Path) -> Iterator[Measurer]:
    """A measurer that times on one core; this process and the builders use the others.

    The folder `state` keeps the reference outputs.
    """
    from benchmarks.common.setting import pin
    from tlmd.measure.cores.core_plan import plan_cores
    from tlmd.measure.measurer import Measurer

    layout = plan_cores(run=1)
    pin(layout.build)
    with Measurer(layout, state / "references") as measurer:
        yield measurer


def measure_in_rounds(
    state: Path,
    out: Path,
    draw_tasks: Callable[[TargetInfo], list[Task]],
    shares: Mapping[str, float],
    goals: Sequence[int],
) -> None:
    """Measure until each task has as many candidates, one goal after the other; export each time.

    `shares` are those of `mixed_writers`. The records are kept in the folder `state`, so that the
    same call goes on after an interruption. One core times, the others build.
    """
    from tlmd.records.store import RecordStore
    from tlmd.space.hardware.target import resolve

    with RecordStore(state / "records.sqlite") as store, on_one_core(state) as measurer:
        tasks = store.tasks() or draw_tasks(resolve("native", 1))
        store.add_tasks(tasks)
        writers = mixed_writers(shares)
        for goal in goals:
            for task in tasks:
                _extend(store, measurer, writers, task, goal)
            counts = store.export_dataset(out)
            print(f"{goal} of each task: {counts.records} records in {out}", flush=True)


def mixed_writers(shares: Mapping[str, float]) -> list[tuple[Generator, float]]:
    """Generators with the shipped checkpoint and the share of each.

    ``random`` draws all candidates, ``picked`` has them written by the TLM and chosen by the cost
    model, ``near`` changes the best programs so far.
    """
    from tlmd.data.config import SHIPPED, GenerateConfig
    from tlmd.generate.generator import Generator
    from tlmd.tlm import checkpoint

    shipped = checkpoint.load(SHIPPED)
    configs = {
        "random": GenerateConfig(uniform=1, refined=0, explore=1),
        "picked": GenerateConfig(uniform=0, refined=0, explore=0),
        "near": GenerateConfig(uniform=0, refined=1, explore=0.5),
    }
    return [
        (Generator(shipped, configs[name], seed=seed), share)
        for seed, (name, share) in enumerate(shares.items(), 1)
    ]


def _extend(
    store: RecordStore,
    measurer: Measurer,
    writers: Sequence[tuple[Generator, float]],
    task: Task,
    goal: int,
) -> None:
    """Measure until the task has `goal` candidates, or its space gives no new ones."""
    known = store.records(task.id, task.target.fingerprint)
    missing = goal - sum(r.outcome.status is not Status.INVALID for r in known)
    if missing <= 0:
        return
    begin = time.monotonic()
    found: list[Record] = []
    for generator, share in writers:
        written, _ = generator.write(task, round(missing * share), known)
        measured = measure_proposals(measurer, task, written)
        known, found = [*known, *measured], [*found, *measured]
    store.add_records(found)
    best = min((r.outcome.seconds for r in known), default=float("inf"))
    took = time.monotonic() - begin
    print(f"{task.name}: {len(found)} in {took:.0f} s, best {best * 1e6:.1f} us", flush=True)
