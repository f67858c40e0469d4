"""Jobs and what is known of their tasks."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from tlmd.ranking import fastest, finalists, leading
from tlmd.types import Baseline, Proposal, Record, Status, Task

_FINALS = 3  # races of one task: a best that lost its race makes way for another that had none
_BARREN = 4  # turns without a program, all refused, before a task is given up


class JobState(enum.StrEnum):
    """Where a job is in its life."""

    PREPARING = "preparing"  # its model is being lowered to tasks
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (JobState.DONE, JobState.CANCELLED, JobState.FAILED)


@dataclass
class TaskState:
    """What the pipeline knows of a task on one kind of machine: its newest record per candidate.

    ``pending`` are candidates that were ordered or written and have no record yet: id -> hash.
    """

    task: Task
    records: list[Record]
    baseline: Baseline | None = None
    exhausted: bool = False
    barren: int = 0  # turns in a row without a program to measure
    writing: int = 0  # candidates ordered from a generator
    pending: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trials = 0
        self.failed = 0
        self.best: Record | None = None
        self.racing = False  # its finalists are with a slot
        self.rounds: list[float] = []  # the best seconds after each turn
        self._finals = 0
        self._known: dict[str, str] = {}  # id -> hash of all that was tried here
        self._hashes: set[str] = set()
        records, self.records = self.records, []
        self.add(records)

    def add(self, records: Iterable[Record]) -> None:
        """Take in new records; what was only imported does not count as a trial."""
        for record in records:
            self.records.append(record)
            self.pending.pop(record.candidate.id, None)
            self.failed += not record.outcome.ok
            if record.batch < 0:
                continue
            self._known[record.candidate.id] = record.module_hash
            self._hashes.add(record.module_hash or record.candidate.id)
            self.trials += record.outcome.status is not Status.INVALID
            self._finals = 0
        self.best = fastest(self.own)

    def refresh(self, raced: Iterable[Record]) -> None:
        """Take in a race between candidates that have records: their newest times count."""
        newest = {r.candidate.id: r for r in raced}
        self.records = [newest.get(r.candidate.id, r) for r in self.records]
        self.best = fastest(self.own)

    @property
    def finalists(self) -> tuple[Record, ...]:
        """Who is to be raced before the best is known for sure; none where it is."""
        return finalists(self.own, self.best) if self._finals < _FINALS else ()

    def begin_race(self) -> tuple[Record, ...]:
        """The finalists, which are with a slot from now on."""
        found = self.finalists
        self._finals += 1
        self.racing = bool(found)
        return found

    @property
    def own(self) -> tuple[Record, ...]:
        """What was measured here; imported candidates may be written again and verified."""
        return tuple(r for r in self.records if r.batch >= 0)

    def fastest(self, count: int) -> tuple[Record, ...]:
        """The fastest verified records, the best first."""
        return leading(self.own, count)

    @property
    def tried(self) -> tuple[tuple[str, str], ...]:
        """Ids and module hashes of all that was tried here or is about to be."""
        return tuple((self._known | self.pending).items())

    @property
    def best_seconds(self) -> float:
        return self.best.outcome.seconds if self.best else float("inf")

    @property
    def seconds(self) -> float:
        """What the task costs now: its best verified program, else its default, else infinite."""
        default = self.baseline.seconds if self.baseline else float("inf")
        return min(self.best_seconds, default)

    @property
    def claimed(self) -> int:
        """Trials done or on their way."""
        return self.trials + len(self.pending) + self.writing

    def fresh(self, proposals: Iterable[Proposal]) -> list[Proposal]:
        """Those that nobody has measured or is about to measure."""
        found: dict[str, Proposal] = {}
        pending = set(self.pending.values())
        for p in proposals:
            known = p.candidate.id in self._known or p.candidate.id in self.pending
            if not known and p.module_hash not in self._hashes and p.module_hash not in pending:
                found.setdefault(p.module_hash, p)
        return list(found.values())

    def end_turn(self, programs: int, refused: int) -> None:
        """A turn was written; a space without new programs is exhausted.

        A large space of which TVM refuses everything must not keep a job from ending either.
        """
        self.barren = 0 if programs else self.barren + 1
        self.exhausted = self.barren > (_BARREN if refused else 0)


@dataclass(frozen=True)
class Progress:
    """A snapshot of a job for displays.

    ``measured`` counts what earlier runs left as well, ``measured_now`` does not, ``planned`` is
    what is measured at the most (0: no end is planned). ``estimate_s`` and ``baseline_s`` are
    weighted sums of the best and of the unscheduled times.
    """

    task: str
    done: int
    total: int
    measured: int
    measured_now: int
    planned: int
    failed: int
    estimate_s: float
    baseline_s: float
    elapsed_s: float


@dataclass
class Job:
    """A set of tasks and how far to go with them.

    ``trials`` are measurements per task, 0 for no limit; ``budget_s`` bounds the measuring, though
    every task gets a program (``hurried``: only those that have none). A ``corpus`` job trains the
    TLM and gets turns only when no user's job waits; with ``until_converged`` it ends when
    measuring on does not pay. ``whole`` says that all its tasks are known.
    """

    id: str
    trials: int
    corpus: bool = False
    until_converged: bool = False
    budget_s: float | None = None
    whole: bool = True
    weights: dict[str, int] = field(default_factory=dict)
    tasks: list[TaskState] = field(default_factory=list)
    state: JobState = JobState.RUNNING
    reason: str = ""
    begun: float = 0.0
    ended: float = 0.0
    measured_now: int = 0
    current: str = ""
    since: float | None = None  # when the first candidate was measured
    hurried: bool = False

    def add(self, state: TaskState, weight: int) -> bool:
        """A further task; False where the job has it already."""
        new = state.task.id not in self.weights
        if new:
            self.tasks.append(state)
        self.weights[state.task.id] = weight
        return new

    def weight(self, state: TaskState) -> int:
        """How often the job's model runs the task."""
        return self.weights[state.task.id]

    def room(self, state: TaskState) -> int:
        """How many more candidates of a task the job wants."""
        if state.exhausted or (self.hurried and state.best is not None):
            return 0
        return max(0, self.trials - state.claimed) if self.trials else 1 << 30

    def measured(self, state: TaskState) -> bool:
        """Whether no more candidates of a task are to be measured."""
        if state.pending or state.writing:
            return False
        return state.exhausted or (self.trials > 0 and state.trials >= self.trials)

    def satisfied(self, state: TaskState) -> bool:
        """Whether nothing more is to be measured of a task, its finalists included."""
        if not self.measured(state) or state.racing:
            return False
        return self.corpus or self.hurried or not state.finalists

    def settle(self, now: float) -> bool:
        """Whether the job has what it asked for, or is out of time with a program for every task.

        A failing task has its trials to find one.
        """
        if self.since is None and self.measured_now:
            self.since = now
        if self.budget_s is not None and self.since is not None:
            self.hurried = now >= self.since + self.budget_s
        if self.hurried and all(s.best or self.satisfied(s) for s in self.tasks):
            return True
        return all(map(self.satisfied, self.tasks))

    def progress(self, now: float) -> Progress:
        """A snapshot."""
        timed = [s for s in self.tasks if s.best is not None and s.baseline is not None]
        planned = sum(s.trials if s.exhausted else self.trials for s in self.tasks)
        return Progress(
            self.current,
            sum(map(self.satisfied, self.tasks)),
            len(self.tasks),
            sum(s.trials for s in self.tasks),
            self.measured_now,
            planned if self.trials else 0,
            sum(s.failed for s in self.tasks),
            sum(self.weight(s) * s.best_seconds for s in timed),
            sum(self.weight(s) * s.baseline.seconds for s in timed if s.baseline),
            (self.ended or now) - self.begun,
        )
