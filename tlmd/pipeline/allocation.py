"""Who gets the next measurements: jobs of users first, then the corpus; by weight x expected gain.

Within a job every task gets a first turn before any gets a second one. The gain that one more turn
promises is estimated as in the task schedulers of Ansor and MetaSchedule: from what the last turns
brought, and by an optimism that fades with the trials a task has had.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tlmd.pipeline.jobs import Job, TaskState

_RECENT = 3  # turns whose gain is carried forward
_OPTIMISM = 0.5  # share of a task's time that its n-th trial may still save, times 1 / n


@dataclass(frozen=True)
class Turn:
    """`count` candidates of one task for one job."""

    job: Job
    state: TaskState
    count: int


def allocate(jobs: Sequence[Job], size: int, turn: int) -> list[Turn]:
    """Turns of the next batch: about `size` candidates, at most `turn` of each task.

    Jobs of users share a batch turn by turn, in the order they came; corpus jobs get one only when
    no user's job wants anything. A batch has at most one turn of a task.
    """
    users = [job for job in jobs if not job.corpus]
    turns = _share(users, size, turn)
    return turns or _share([job for job in jobs if job.corpus], size, turn)


def _share(jobs: Sequence[Job], size: int, turn: int) -> list[Turn]:
    queues = [iter(ranked(job)) for job in jobs]
    owners = dict(enumerate(jobs))
    turns: list[Turn] = []
    taken: set[tuple[str, str]] = set()
    left = size
    while owners and left > 0:
        for number, job in list(owners.items()):
            state = next((s for s in queues[number] if s.task.key not in taken), None)
            if state is None:
                del owners[number]
                continue
            count = min(turn, job.room(state))
            taken.add(state.task.key)
            turns.append(Turn(job, state, count))
            left -= count
            if left <= 0:
                break
    return turns


def ranked(job: Job) -> list[TaskState]:
    """Tasks of a job that want candidates, the most promising first."""
    waiting = [s for s in job.tasks if job.room(s) > 0]
    return sorted(waiting, key=lambda s: (s.claimed > 0, -_promise(job, s)))


def _promise(job: Job, state: TaskState) -> float:
    """Seconds of the whole model that one more turn of this task may save."""
    if not math.isfinite(state.seconds):
        return job.weight(state) * max(state.task.flops, 1.0)
    return job.weight(state) * state.seconds * expected_gain(state)


def expected_gain(state: TaskState) -> float:
    """The share of a task's time that its next turn may save."""
    recent = state.rounds[-_RECENT - 1 :]
    gained = 0.0
    if len(recent) > 1 and math.isfinite(recent[0]):
        gained = (1 - recent[-1] / recent[0]) / (len(recent) - 1)
    return max(gained, _OPTIMISM / (1 + state.trials))
