"""Which tasks get the next measurements: by weight x expected gain, users' jobs before the corpus.

Within a job every group of alternatives gets its first candidates before any group gets more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tlmd.pipeline.jobs import TuningJob
from tlmd.pipeline.task_groups import TaskGroup
from tlmd.pipeline.task_state import TaskState


@dataclass(frozen=True)
class TaskAllocation:
    """`count` candidates of one task for one job, in one batch."""

    job: TuningJob
    task: TaskState
    count: int


def allocate(jobs: Sequence[TuningJob], size: int, per_task: int) -> list[TaskAllocation]:
    """The tasks of the next batch: about `size` candidates, at most `per_task` of each task.

    Users' jobs take one group each in turn, in the order in which they were submitted. Corpus jobs
    are served only when no user's job wants candidates. A group is at most once in a batch.
    """
    users = [job for job in jobs if not job.corpus]
    allocations = _share(users, size, per_task)
    return allocations or _share([job for job in jobs if job.corpus], size, per_task)


def _share(jobs: Sequence[TuningJob], size: int, per_task: int) -> list[TaskAllocation]:
    queues = [iter(by_promise(job)) for job in jobs]
    waiting = dict(enumerate(jobs))
    allocations: list[TaskAllocation] = []
    taken: set[tuple[str, str]] = set()
    left = size
    while waiting and left > 0:
        for number, job in list(waiting.items()):
            group = next((g for g in queues[number] if taken.isdisjoint(g.keys)), None)
            if group is None:
                del waiting[number]
                continue
            task, count = group.next(job.room(group), per_task)
            taken |= group.keys
            allocations.append(TaskAllocation(job, task, count))
            left -= count
            if left <= 0:
                break
    return allocations


def by_promise(job: TuningJob) -> list[TaskGroup]:
    """Groups of a job that want candidates, the most promising first."""
    waiting = [g for g in job.groups if job.room(g) > 0]
    return sorted(waiting, key=lambda g: (g.claimed > 0, -_promise(job, g)))


def _promise(job: TuningJob, group: TaskGroup) -> float:
    """Seconds of the whole model that further candidates of this group may save.

    In a corpus all groups count the same, and the share that they may save decides.
    """
    gain = group.expected_gain
    if job.corpus:
        return gain
    if not math.isfinite(group.seconds):
        return group.weight * max(group.best.task.flops, 1.0)
    return group.weight * group.seconds * gain
