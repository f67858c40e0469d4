"""When a campaign ends: the paper's stopping rule (section 4.3), with its numbers as options."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from tlmd.config import PipelineConfig
from tlmd.pipeline.jobs import TuningJob
from tlmd.pipeline.task_state import TaskState

_EVERY = 16  # candidates between two entries of the history


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
    """Watches the weighted sum of the best times of a job's tasks.

    The job has converged when the last `window` measured candidates improved the sum by less than
    `limit`. Every task that is not exhausted must have been measured in the window; else the window
    begins where the longest-waiting task was measured last. A task without a verified program
    counts with the time of its default.
    """

    window: int = PipelineConfig().window
    limit: float = PipelineConfig().gain
    measured: int = 0
    _sums: deque[tuple[int, float]] = field(default_factory=deque)
    _last_measured: dict[str, int] = field(default_factory=dict)
    _timed_tasks: int = 0

    def observe(self, job: TuningJob, task: TaskState, count: int = 1) -> None:
        """`count` candidates of a task were measured."""
        before = self.measured // _EVERY
        self.measured += count
        self._last_measured[task.task.computation] = self.measured
        if self.measured // _EVERY > before or not self._sums:
            if (timed := _timed(job)) != self._timed_tasks:  # sums of other tasks do not compare
                self._timed_tasks = timed
                self._sums.clear()
            self._sums.append((self.measured, weighted_sum(job)))

    def status(self, job: TuningJob) -> ConvergenceStatus:
        """The gain now. A job whose tasks are not all known has not converged."""
        start = self._start(job)
        gain = None
        if start is not None and job.all_tasks_known and _timed(job) == self._timed_tasks:
            while len(self._sums) > 1 and self._sums[1][0] <= start:
                self._sums.popleft()
            if self._sums and self._sums[0][0] <= start:
                before, now = self._sums[0][1], weighted_sum(job)
                gain = 1 - now / before if before > 0 else None
        converged = gain is not None and gain < self.limit
        return ConvergenceStatus(self.measured, self.window, gain, self.limit, converged)

    def _start(self, job: TuningJob) -> int | None:
        """Where the window begins; None while a task was never measured."""
        last = [self._last_measured.get(g.computation) for g in job.groups if not g.is_exhausted]
        if None in last:
            return None
        oldest = min((n for n in last if n is not None), default=self.measured)
        return min(self.measured - self.window, oldest)


def weighted_sum(job: TuningJob) -> float:
    """Seconds of all tasks with their best programs; a task without any time does not count."""
    return sum(g.weight * g.seconds for g in job.groups if math.isfinite(g.seconds))


def _timed(job: TuningJob) -> int:
    return sum(math.isfinite(g.seconds) for g in job.groups)
