"""Which tasks get the next measurements: by weight x expected gain, users' jobs before the corpus.

Within a job every task gets its first candidates before any task gets more. How much further
candidates of a task may gain is estimated as in the task schedulers of Ansor and MetaSchedule: from
what the last batches gained, and from an optimistic term that falls with the number of trials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tlmd.pipeline.jobs import TaskState, TuningJob

_RECENT = 3  # batches of a task whose gain is carried forward
_OPTIMISM = 0.5  # share of a task's time that its n-th trial may still save, times 1 / n


@dataclass(frozen=True)
class TaskAllocation:
    """`count` candidates of one task for one job, in one batch."""

    job: TuningJob
    task: TaskState
    count: int


def allocate(jobs: Sequence[TuningJob], size: int, per_task: int) -> list[TaskAllocation]:
    """The tasks of the next batch: about `size` candidates, at most `per_task` of each task.

    Users' jobs take one task each in turn, in the order in which they were submitted. Corpus jobs
    are served only when no user's job wants candidates. A task is at most once in a batch.
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
            task = next((t for t in queues[number] if t.task.key not in taken), None)
            if task is None:
                del waiting[number]
                continue
            count = min(per_task, job.room(task))
            taken.add(task.task.key)
            allocations.append(TaskAllocation(job, task, count))
            left -= count
            if left <= 0:
                break
    return allocations


def by_promise(job: TuningJob) -> list[TaskState]:
    """Tasks of a job that want candidates, the most promising first."""
    waiting = [t for t in job.tasks if job.room(t) > 0]
    return sorted(waiting, key=lambda t: (t.claimed > 0, -_promise(job, t)))


def _promise(job: TuningJob, task: TaskState) -> float:
    """Seconds of the whole model that further candidates of this task may save.

    In a corpus all tasks count the same, and the share that they may save decides.
    """
    if job.corpus:
        return expected_gain(task)
    if not math.isfinite(task.seconds):
        return job.weight(task) * max(task.task.flops, 1.0)
    return job.weight(task) * task.seconds * expected_gain(task)


def expected_gain(task: TaskState) -> float:
    """The share of the task's time that its next allocation may save."""
    recent = task.best_after_batch[-_RECENT - 1 :]
    gained = 0.0
    if len(recent) > 1 and math.isfinite(recent[0]):
        gained = (1 - recent[-1] / recent[0]) / (len(recent) - 1)
    return max(gained, _OPTIMISM / (1 + task.trials))
