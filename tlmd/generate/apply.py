"""Applying candidates: their schedules and module hashes, each program once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tlmd.data.types import Outcome, Record, Status, Task
from tlmd.generate.propose import WrittenCandidate
from tlmd.space.space import InvalidCandidate, TaskSpace, module_hash


@dataclass(frozen=True)
class AppliedCandidate:
    """A candidate whose program is known."""

    written: WrittenCandidate
    schedule: Any
    """The TVM schedule, postprocessors included."""
    module_hash: str


def apply_new(
    space: TaskSpace, written: Iterable[WrittenCandidate], ids: set[str], hashes: set[str]
) -> tuple[list[AppliedCandidate], list[Record]]:
    """Apply the candidates that are new; the second list has records of those that TVM refused.

    `ids` and `hashes` are the candidates and final modules that are known; both sets grow.
    """
    applied: list[AppliedCandidate] = []
    refused: list[Record] = []
    for one in written:
        candidate = one.candidate
        if candidate.id in ids:
            continue
        ids.add(candidate.id)
        try:
            schedule = space.finish(candidate)
        except InvalidCandidate as error:
            refused.append(_refusal(space.task, one, str(error)))
            continue
        digest = module_hash(schedule.mod)
        if digest not in hashes:
            hashes.add(digest)
            applied.append(AppliedCandidate(one, schedule, digest))
    return applied, refused


def _refusal(task: Task, written: WrittenCandidate, reason: str) -> Record:
    return Record(
        written.candidate,
        Outcome(Status.INVALID, detail=reason),
        written.version,
        fingerprint=task.target.fingerprint,
        created=time.time(),
        writer=written.writer,
    )
