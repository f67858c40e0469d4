"""When measuring on does not pay: the stopping rule of the paper (section 4.3), made explicit."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tlmd.pipeline.jobs import Job, TaskState

_EVERY = 16  # candidates between two entries of the history


@dataclass(frozen=True)
class Verdict:
    """``gain`` is the improvement over the window as a share, None before the window is full."""

    measured: int
    window: int
    gain: float | None
    limit: float
    converged: bool


@dataclass
class Convergence:
    """Watches the weighted sum of best latencies of a job's tasks.

    It has converged when the sum improved by less than `limit` over the last `window` measured
    candidates, and every task that can still have turns had one meanwhile: otherwise the window
    reaches back to the turn of the task that waits longest. A task counts with its default until it
    has a verified program.
    """

    window: int = 20_000
    limit: float = 0.01
    measured: int = 0
    _sums: deque[tuple[int, float]] = field(default_factory=deque)
    _turns: dict[str, int] = field(default_factory=dict)
    _tasks: int = 0

    def observe(self, job: Job, state: TaskState, count: int = 1) -> None:
        """`count` candidates of a task were measured."""
        before = self.measured // _EVERY
        self.measured += count
        self._turns[state.task.id] = self.measured
        if self.measured // _EVERY > before or not self._sums:
            if (timed := _timed(job)) != self._tasks:  # sums over other tasks do not compare
                self._tasks = timed
                self._sums.clear()
            self._sums.append((self.measured, weighted_sum(job)))

    def verdict(self, job: Job) -> Verdict:
        """The state of things; a job whose tasks are not all known has not converged."""
        start = self._start(job.tasks)
        gain = None
        if start is not None and job.whole and _timed(job) == self._tasks:
            while len(self._sums) > 1 and self._sums[1][0] <= start:
                self._sums.popleft()
            if self._sums and self._sums[0][0] <= start:
                before, now = self._sums[0][1], weighted_sum(job)
                gain = 1 - now / before if before > 0 else None
        converged = gain is not None and gain < self.limit
        return Verdict(self.measured, self.window, gain, self.limit, converged)

    def _start(self, tasks: Iterable[TaskState]) -> int | None:
        """Where the window begins; None while a task has had no turn at all."""
        turns = [self._turns.get(s.task.id) for s in tasks if not s.exhausted]
        if None in turns:
            return None
        oldest = min((t for t in turns if t is not None), default=self.measured)
        return min(self.measured - self.window, oldest)


def weighted_sum(job: Job) -> float:
    """Seconds of all tasks with their best programs; one that has no time at all does not count."""
    return sum(job.weight(s) * s.seconds for s in job.tasks if math.isfinite(s.seconds))


def _timed(job: Job) -> int:
    return sum(math.isfinite(s.seconds) for s in job.tasks)
