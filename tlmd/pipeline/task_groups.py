"""The alternatives of one computation in one job: the model needs the fastest of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tlmd.data.selection import finalists
from tlmd.data.types import Record, TargetInfo
from tlmd.pipeline.task_state import TaskState

_FIRST = 4  # candidates of each alternative before the promising ones get the rest
# Comparisons of one group: after each, the best may be another one that was not compared yet.
_MAX_COMPARISONS = 3


@dataclass(eq=False)
class TaskGroup:
    """Tasks that compute the same. Most groups have one task; trials count for the whole group."""

    computation: str
    """`Task.computation` of the members."""

    weight: int
    """How often the job's model runs the computation."""

    members: list[TaskState] = field(default_factory=list)
    """In the order in which they are tried."""

    @property
    def best(self) -> TaskState:
        """The member with the fastest program; the first one while there is none."""
        return min(self.members, key=lambda task: task.best_seconds)

    @property
    def best_seconds(self) -> float:
        return self.best.best_seconds

    @property
    def baseline_s(self) -> float:
        """Seconds of the unscheduled program; infinite where they are not known."""
        seconds = [t.baseline.seconds for t in self.members if t.baseline is not None]
        return min(seconds, default=math.inf)

    @property
    def seconds(self) -> float:
        """The cost of the computation now: the best program, else the default, else infinite."""
        return min(self.best_seconds, self.baseline_s)

    @property
    def earlier_best_seconds(self) -> float | None:
        """The best time before the newest batches of the members; None: it is not known."""
        seconds = [s for t in self.members if (s := t.earlier_best_seconds) is not None]
        return min(seconds, default=None)

    @property
    def trials(self) -> int:
        return sum(task.trials for task in self.members)

    @property
    def claimed(self) -> int:
        """Trials that are done, pending or being written."""
        return sum(task.claimed for task in self.members)

    @property
    def finalists(self) -> tuple[Record, ...]:
        """Records to compare before the best is certain; empty where it is certain."""
        if min(task.comparisons for task in self.members) >= _MAX_COMPARISONS:
            return ()
        return finalists((r for task in self.members for r in task.own), self.best.best)

    def begin_comparison(self) -> tuple[Record, ...]:
        """The finalists, for the slot that compares them from now on."""
        finalists = self.finalists
        for task in self.members:
            task.comparisons += 1
            task.comparing = bool(finalists)
        return finalists

    @property
    def is_comparing(self) -> bool:
        """A slot compares finalists of it."""
        return any(task.comparing for task in self.members)

    @property
    def keys(self) -> set[tuple[str, str]]:
        """The keys of the members."""
        return {task.task.key for task in self.members}

    @property
    def target(self) -> TargetInfo:
        """The hardware that its candidates need."""
        return self.members[0].task.target

    @property
    def newest_batch(self) -> int:
        """The last batch with candidates of a member; -1: there was none."""
        return max(task.newest_batch for task in self.members)

    @property
    def expected_gain(self) -> float:
        """The share of the time that the next candidates may save."""
        return max(task.expected_gain for task in self.members if not task.exhausted)

    @property
    def is_exhausted(self) -> bool:
        return all(task.exhausted for task in self.members)

    @property
    def is_busy(self) -> bool:
        """Candidates are pending or being written."""
        return any(task.pending or task.writing for task in self.members)

    def next(self, room: int, most: int) -> tuple[TaskState, int]:
        """The member that gets the next candidates, and how many.

        `room`: candidates that the job still wants, `most`: of one task in a batch. Each one gets a
        few first, those with the fastest known programs before the others; then the one whose best
        program may become the fastest gets more. Not to be called for an exhausted group.
        """
        waiting = [task for task in self.members if not task.exhausted]
        waiting.sort(key=lambda task: task.known_s)
        if len(self.members) == 1:
            return waiting[0], min(room, most)
        first = max(1, min(_FIRST, (self.claimed + room) // (len(self.members) + 2)))
        for task in waiting:
            if task.claimed < first:
                return task, min(room, most, first - task.claimed)
        task = min(waiting, key=lambda t: t.best_seconds * (1 - t.expected_gain))
        return task, min(room, most)
