"""Jobs: which groups of tasks are measured, and until when."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tlmd.data.types import JobState, TargetInfo
from tlmd.pipeline.convergence import Convergence
from tlmd.pipeline.task_groups import TaskGroup
from tlmd.pipeline.task_state import TaskState

_MOST = 0.5  # of a job's time: what its newest batches gained is known


@dataclass(frozen=True)
class Progress:
    """How far a job is, for displays."""

    task: str
    """Name of the task that was measured last."""
    done: int
    """Tasks that are finished, of ``total``."""
    total: int
    measured: int
    """Candidates, those of earlier runs included."""
    measured_now: int
    """Candidates of this run."""
    planned: int
    """Candidates that will be measured at most; 0: no end is planned."""
    failed: int
    estimate_s: float
    """Weighted sum of the best times."""
    baseline_s: float
    """Weighted sum of the unscheduled programs' times."""
    elapsed_s: float
    recent_gain: float | None = None
    """The share by which the newest quarter of each task's batches lowered the weighted sum. None:
    most of the sum is of tasks with too few batches."""


@dataclass
class TuningJob:
    """A set of tasks, and how long to measure them."""

    id: str
    trials: int
    """Measurements per task; 0: no limit."""
    corpus: bool = False
    """The job trains the TLM. Its tasks are measured only when no user's job wants candidates."""
    until_converged: bool = False
    """A corpus job ends when measuring more does not pay."""
    budget_s: float | None = None
    """Seconds for measuring. Every task gets a program even if it takes longer."""
    all_tasks_known: bool = True
    priority: int = 0
    """Jobs of a higher priority come first (`TaskScheduler`)."""
    weight: float = 1.0
    """The share of the job among those of its priority is in proportion to this."""
    created: float = 0.0
    """Unix time when it was submitted."""
    state: JobState = JobState.RUNNING
    reason: str = ""
    begun: float = 0.0
    ended: float = 0.0
    measured_now: int = 0
    current: str = ""
    spent_s: float = 0.0
    """Seconds of the time budget that are over, those of earlier daemons included."""
    past_deadline: bool = False
    """The time budget is over: only tasks without a program get candidates."""
    targets: set[TargetInfo] = field(default_factory=set)
    """The hardware of its tasks."""
    convergence: Convergence | None = None
    """Convergence of a corpus job whose tasks are all known."""
    _seen: float | None = None  # the time of the last `update` since something was measured
    _by_computation: dict[str, TaskGroup] = field(default_factory=dict)

    @property
    def has_converged(self) -> bool:
        return self.convergence is not None and self.convergence.status(self).converged

    @property
    def groups(self) -> list[TaskGroup]:
        """In the order in which their first tasks were added."""
        return list(self._by_computation.values())

    def group(self, computation: str) -> TaskGroup:
        """The group of this `Task.computation`."""
        return self._by_computation[computation]

    @property
    def tasks(self) -> list[TaskState]:
        """The members of all groups."""
        return [task for group in self.groups for task in group.members]

    def add(self, task: TaskState, weight: int) -> None:
        """Add a task to its group, where it may be already."""
        self.targets.add(task.task.target)
        computation = task.task.computation
        group = self._by_computation.setdefault(computation, TaskGroup(computation, weight))
        group.weight = weight
        if task.task.key not in group.keys:
            group.members.append(task)

    def room(self, group: TaskGroup) -> int:
        """How many more candidates of a group the job wants."""
        if group.is_exhausted or (self.past_deadline and group.best.best is not None):
            return 0
        return max(0, self.trials - group.claimed) if self.trials else 1 << 30

    def is_measured(self, group: TaskGroup) -> bool:
        """Whether the job wants no more candidates of a group, and none is pending."""
        if group.is_busy:
            return False
        return group.is_exhausted or (self.trials > 0 and group.trials >= self.trials)

    def is_finished_with(self, group: TaskGroup) -> bool:
        """Whether nothing of a group is left to measure, the finalists included."""
        if not self.is_measured(group) or group.is_comparing:
            return False
        return self.corpus or self.past_deadline or not group.finalists

    def update(self, now: float, paused: bool = False) -> bool:
        """Whether the job has what it asked for, or is out of time with a program for every task.

        A task whose candidates fail keeps its trials to find one that works. The time budget begins
        with the first candidate, and does not run while the pipeline is paused.
        """
        if self.measured_now:
            if self._seen is not None and not paused:
                self.spent_s += now - self._seen
            self._seen = now
        self.past_deadline = self.budget_s is not None and self.spent_s >= self.budget_s
        if self.past_deadline and all(g.best.best or self.is_finished_with(g) for g in self.groups):
            return True
        return all(map(self.is_finished_with, self.groups))

    def progress(self, now: float) -> Progress:
        """How far the job is at the time `now` of the worker pool."""
        groups = self.groups
        timed = [g for g in groups if math.isfinite(g.best_seconds)]
        timed = [g for g in timed if any(t.baseline is not None for t in g.members)]
        planned = sum(g.trials if g.is_exhausted else self.trials for g in groups)
        return Progress(
            self.current,
            sum(map(self.is_finished_with, groups)),
            len(groups),
            sum(g.trials for g in groups),
            self.measured_now,
            planned if self.trials else 0,
            sum(t.failed for t in self.tasks),
            sum(g.weight * g.best_seconds for g in timed),
            sum(g.weight * g.baseline_s for g in timed),
            (self.ended or now) - self.begun,
            self._recent_gain(),
        )

    def _recent_gain(self) -> float | None:
        tuned = [(g, g.earlier_best_seconds) for g in self.groups if g.best.best is not None]
        pairs = [(g.weight, s, min(g.best_seconds, s)) for g, s in tuned if s is not None]
        earlier = sum(weight * before for weight, before, _ in pairs)
        now = sum(weight * best for weight, _, best in pairs)
        whole = sum(g.weight * g.best_seconds for g, _ in tuned)
        return 1 - now / earlier if earlier and now >= _MOST * whole else None
