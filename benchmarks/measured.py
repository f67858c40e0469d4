"""Measuring as the daemon does: proposals become records, finalists are timed in turns."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tlmd.space.space import TaskSpace
from tlmd.types import Candidate, MeasureInput, Outcome, Proposal, Record, Status, Task

if TYPE_CHECKING:
    from tlmd.generate.generator import Generator
    from tlmd.measure.measurer import Measurer
    from tlmd.records.store import RecordStore


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

    ``others`` are further programs. Ends the benchmark where they cannot be compared.
    """
    space = TaskSpace(task)
    finalists = {c.id: MeasureInput(c.id, space.trace_json(c)) for c in candidates}
    finalists |= {given.candidate_id: given for given in others}
    found = measurer.compare([(task, given) for given in finalists.values()])
    if not found:
        raise SystemExit(f"the finalists of {task.name} could not be compared")
    return dict(zip(finalists, found, strict=True))


def mixed_writers(shares: Mapping[str, float]) -> list[tuple[Generator, float]]:
    """Generators with the shipped checkpoint and the share of each.

    ``random`` draws all candidates, ``picked`` has them written by the TLM and chosen by the cost
    model, ``near`` changes the best programs so far.
    """
    from tlmd.config import SHIPPED, GenerateConfig
    from tlmd.generate.generator import Generator
    from tlmd.model import checkpoint

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


def extend(
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
