"""Applying candidates: their schedules and module hashes, each program once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tlmd.generate.propose import WrittenCandidate
from tlmd.space.space import InvalidCandidate, TaskSpace, module_hash
from tlmd.types import Candidate, Outcome, Record, Status, Task


@dataclass(frozen=True)
class AppliedCandidate:
    """A candidate whose program is known."""

    candidate: Candidate
    version: int
    """The checkpoint that wrote it."""
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
    for candidate, version in written:
        if candidate.id in ids:
            continue
        ids.add(candidate.id)
        try:
            schedule = space.finish(candidate)
        except InvalidCandidate as error:
            refused.append(_refusal(space.task, candidate, version, str(error)))
            continue
        digest = module_hash(schedule.mod)
        if digest not in hashes:
            hashes.add(digest)
            applied.append(AppliedCandidate(candidate, version, schedule, digest))
    return applied, refused


def _refusal(task: Task, candidate: Candidate, version: int, reason: str) -> Record:
    outcome = Outcome(Status.INVALID, detail=reason)
    fingerprint = task.target.fingerprint
    return Record(candidate, outcome, version, fingerprint=fingerprint, created=time.time())
