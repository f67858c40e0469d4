"""Measuring as the daemon does: proposals become records, finalists are timed in turns."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from tlmd.space.space import TaskSpace
from tlmd.types import Candidate, MeasureInput, Outcome, Proposal, Record, Task


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
