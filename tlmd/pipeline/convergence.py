"""When a campaign ends: the paper's stopping rule (section 4.3), with its numbers as options."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tlmd.data.config import PipelineConfig
from tlmd.data.types import Record, Status
from tlmd.pipeline.task_groups import TaskGroup

if TYPE_CHECKING:
    from tlmd.pipeline.tuning_jobs import TuningJob

_EVERY = 16  # candidates between two entries of the history
_NEVER = -1


@dataclass(frozen=True)
class ConvergenceStatus:
    """How much the last measurements improved."""

    measured: int
    window: int
    """Measured candidates that the gain is computed over."""
    gain: float | None
    """Improvement over the window as a share; None before the window is full."""
    limit: float
    converged: bool


@dataclass
class Convergence:
    """Watches the weighted sum of the best times of one job's tasks.

    The job has converged when the last `window` measured candidates improved the sum by less than
    `limit`. Every task that is not exhausted must have been measured in the window; else the window
    begins where the longest-waiting task was measured last. A task without a verified program
    counts with the time of its default. Nothing is stored: `of` computes it from the records.
    """

    window: int = PipelineConfig().window
    limit: float = PipelineConfig().gain
    measured: int = 0
    _sums: deque[tuple[int, float]] = field(default_factory=deque)
    _weighted: dict[str, float] = field(default_factory=dict)  # seconds of the timed groups
    _last_measured: dict[str, int] = field(default_factory=dict)  # the longest-waiting first

    @classmethod
    def of(cls, job: TuningJob, window: int, limit: float) -> Convergence:
        """The convergence of a job all of whose tasks are known, from the records so far.

        Records from before the job was submitted lower its times, but do not count as measured: the
        job may not end before it has measured a window.
        """
        convergence = cls(window, limit)
        best: dict[str, float] = {}
        believed = {group.computation: group.seconds for group in job.groups}
        for group in job.groups:
            best[group.computation] = group.baseline_s
            convergence._last_measured[group.computation] = _NEVER
            convergence._count(group, group.baseline_s)
        measured = [(r, group) for group in job.groups for r in _measured(group)]
        for record, group in sorted(measured, key=lambda pair: pair[0].created):
            if record.outcome.verified:
                # A time below the one believed now was noise.
                seconds = max(record.outcome.seconds, believed[group.computation])
                best[group.computation] = min(best[group.computation], seconds)
            if record.created < job.created:
                convergence._count(group, best[group.computation])
            else:
                convergence._add(group, best[group.computation], 1)
        return convergence

    def observe(self, group: TaskGroup, count: int = 1) -> None:
        """`count` candidates of a group were measured."""
        self._add(group, group.seconds, count)

    def _add(self, group: TaskGroup, seconds: float, count: int) -> None:
        before = self.measured // _EVERY
        self.measured += count
        self._last_measured.pop(group.computation, None)
        self._last_measured[group.computation] = self.measured
        self._count(group, seconds)
        if self.measured // _EVERY > before or not self._sums:
            self._sums.append((self.measured, self._sum))

    def _count(self, group: TaskGroup, seconds: float) -> None:
        if not math.isfinite(seconds):
            return
        if group.computation not in self._weighted:
            self._sums.clear()  # sums of other tasks do not compare
        self._weighted[group.computation] = group.weight * seconds

    @property
    def _sum(self) -> float:
        """Seconds of all tasks with their best programs; a task without any time does not count."""
        return sum(self._weighted.values())

    def status(self, job: TuningJob) -> ConvergenceStatus:
        """The gain now."""
        start = self._start(job)
        gain = None
        if start is not None:
            while len(self._sums) > 1 and self._sums[1][0] <= start:
                self._sums.popleft()
            if self._sums and self._sums[0][0] <= start:
                before, now = self._sums[0][1], self._sum
                gain = 1 - now / before if before > 0 else None
        converged = gain is not None and gain < self.limit
        return ConvergenceStatus(self.measured, self.window, gain, self.limit, converged)

    def _start(self, job: TuningJob) -> int | None:
        """Where the window begins; None while a task was never measured."""
        while self._last_measured:
            computation, last = next(iter(self._last_measured.items()))
            if not job.group(computation).is_exhausted:
                return None if last == _NEVER else min(self.measured - self.window, last)
            del self._last_measured[computation]
        return self.measured - self.window


def _measured(group: TaskGroup) -> list[Record]:
    own = (record for task in group.members for record in task.own)
    return [record for record in own if record.outcome.status is not Status.INVALID]
