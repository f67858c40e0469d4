"""The next tasks to measure: fair shares among jobs, weight x expected gain within one.

Within a job every group of alternatives gets its first candidates before any group gets more.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tlmd.data.types import TargetInfo
from tlmd.pipeline.task_groups import TaskGroup
from tlmd.pipeline.task_state import TaskState
from tlmd.pipeline.tuning_jobs import TuningJob

IsOffered = Callable[[TargetInfo], bool]
"""Whether there are slots for a target."""


@dataclass(frozen=True)
class TaskAllocation:
    """`count` candidates of one task for one job, in one batch."""

    job: TuningJob
    task: TaskState
    count: int


class TaskScheduler:
    """Divides batches among jobs: strictly by priority, then in proportion to their weights.

    Users' jobs come before corpus jobs. Among those, jobs of the highest priority that want
    candidates get all of a batch, and share it by weighted fair queueing: each job has a virtual
    time, which runs by ``candidates / weight``, and the job that is furthest behind is next. Over
    any number of batches a job that always wants candidates has its share, within one batch. A job
    that wants none for a while gets no more later for it.
    """

    def __init__(self) -> None:
        self._virtual: dict[str, float] = {}  # by job id
        self._wanting: set[str] = set()  # ids of jobs that wanted candidates the last time

    def allocate(
        self,
        jobs: Sequence[TuningJob],
        size: int,
        per_task: int,
        is_offered: IsOffered = lambda target: True,
    ) -> list[TaskAllocation]:
        """The tasks of the next batch: about `size` candidates, at most `per_task` of each task.

        `jobs` are all running jobs, in the order in which they were submitted. A group is at most
        once in a batch, and tasks without a slot are in none.
        """
        ids = {job.id for job in jobs}
        self._virtual = {key: time for key, time in self._virtual.items() if key in ids}
        self._wanting &= ids
        levels: dict[tuple[bool, int], list[TuningJob]] = {}
        for job in jobs:
            levels.setdefault((job.corpus, -job.priority), []).append(job)
        for level in sorted(levels):
            if shares := self._share(levels[level], size, per_task, is_offered):
                return shares
        return []

    def _share(
        self, jobs: list[TuningJob], size: int, per_task: int, is_offered: IsOffered
    ) -> list[TaskAllocation]:
        self._join(jobs)
        queue = [(self._virtual[job.id], number) for number, job in enumerate(jobs)]
        heapq.heapify(queue)
        groups: dict[int, Iterator[TaskGroup]] = {}
        allocations: list[TaskAllocation] = []
        taken: set[tuple[str, str]] = set()
        served: set[int] = set()
        left = size
        while queue and left > 0:
            time, number = heapq.heappop(queue)
            job = jobs[number]
            if number not in groups:
                groups[number] = iter(in_order(job, is_offered))
            group = next((g for g in groups[number] if taken.isdisjoint(g.keys)), None)
            if group is None:
                if number not in served:
                    self._wanting.discard(job.id)
                continue
            task, count = group.next(job.room(group), per_task)
            taken |= group.keys
            served.add(number)
            allocations.append(TaskAllocation(job, task, count))
            left -= count
            self._virtual[job.id] = time + count / job.weight
            heapq.heappush(queue, (self._virtual[job.id], number))
        return allocations

    def _join(self, jobs: list[TuningJob]) -> None:
        """Jobs that did not want candidates the last time begin where the others are."""
        clocks = [self._virtual[job.id] for job in jobs if job.id in self._wanting]
        start = min(clocks, default=0.0)
        for job in jobs:
            if job.id not in self._wanting:
                self._virtual[job.id] = max(self._virtual.get(job.id, start), start)
                self._wanting.add(job.id)


def in_order(job: TuningJob, is_offered: IsOffered = lambda target: True) -> list[TaskGroup]:
    """Groups of a job that want candidates: new ones first, then the most promising.

    In a corpus every second one is the one that has waited longest. So each of n tasks is measured
    within 2 n allocations, and the window of `Convergence` can be reached.
    """
    waiting = [g for g in job.groups if job.room(g) > 0 and is_offered(g.target)]
    promising = sorted(waiting, key=lambda g: (g.claimed > 0, -_promise(job, g)))
    if not job.corpus:
        return promising
    oldest = sorted(waiting, key=lambda g: g.newest_batch)
    both = (group for pair in zip(oldest, promising, strict=True) for group in pair)
    return list({group.computation: group for group in both}.values())


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
