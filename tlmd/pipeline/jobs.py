"""Jobs, and what is known of their tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tlmd.selection import fastest, finalists, leading
from tlmd.types import Baseline, Candidate, JobState, Proposal, Record, Status, Task

# Comparisons of one task: after each, the best may be another one that was not compared yet.
_MAX_COMPARISONS = 3
_MAX_EMPTY_ROUNDS = 4  # rounds in which TVM refuses every candidate, before a task is exhausted
_MOST = 0.5  # of a job's time: what its newest batches gained is known


@dataclass
class TaskState:
    """What the pipeline knows of a task on one kind of machine."""

    task: Task
    records: list[Record]
    """The newest record of each candidate."""
    baseline: Baseline | None = None
    exhausted: bool = False
    """The generator finds no new candidates."""
    empty_rounds: int = 0
    """Rounds of writing in a row that gave no candidate."""
    writing: int = 0
    """Candidates that a generator was asked for."""
    pending: dict[str, Proposal] = field(default_factory=dict)
    """By candidate id: written, and without a record yet."""

    def __post_init__(self) -> None:
        self.trials = 0
        self.failed = 0
        self.best: Record | None = None
        self.comparing = False  # a slot compares its finalists
        self.best_after_batch: list[float] = []  # seconds
        self._comparisons = 0
        self._known: dict[str, str] = {}  # of all that was measured here: id -> module hash
        self._hashes: set[str] = set()
        records, self.records = self.records, []
        self.add(records)

    def add(self, records: Iterable[Record]) -> None:
        """Add new records. An imported one does not count as a trial."""
        for record in records:
            self.records.append(record)
            self.pending.pop(record.candidate.id, None)
            self.failed += not record.outcome.ok
            if record.batch < 0:
                continue
            self._known[record.candidate.id] = record.module_hash
            self._hashes.add(record.module_hash or record.candidate.id)
            self.trials += record.outcome.status is not Status.INVALID
            self._comparisons = 0
        self.best = fastest(self.own)

    def replace(self, records: Iterable[Record]) -> None:
        """Replace the records of the same candidates, after a comparison."""
        newest = {r.candidate.id: r for r in records}
        self.records = [newest.get(r.candidate.id, r) for r in self.records]
        self.best = fastest(self.own)

    @property
    def finalists(self) -> tuple[Record, ...]:
        """Records to compare before the best is certain; empty where it is certain."""
        return finalists(self.own, self.best) if self._comparisons < _MAX_COMPARISONS else ()

    def begin_comparison(self) -> tuple[Candidate, ...]:
        """The finalists, for the slot that compares them from now on."""
        found = self.finalists
        self._comparisons += 1
        self.comparing = bool(found)
        return tuple(record.candidate for record in found)

    def records_of(self, candidates: Iterable[Candidate]) -> list[Record]:
        """The records of these candidates, in their order."""
        known = {r.candidate.id: r for r in self.records}
        return [known[candidate.id] for candidate in candidates]

    @property
    def own(self) -> tuple[Record, ...]:
        """Records that were measured here; an imported candidate may be measured again."""
        return tuple(r for r in self.records if r.batch >= 0)

    def fastest(self, count: int) -> tuple[Record, ...]:
        """The fastest verified records, the best first."""
        return leading(self.own, count)

    @property
    def tried(self) -> tuple[tuple[str, str], ...]:
        """Ids and module hashes of all that was measured here or is pending."""
        pending = {key: p.module_hash for key, p in self.pending.items()}
        return tuple((self._known | pending).items())

    @property
    def best_seconds(self) -> float:
        return self.best.outcome.seconds if self.best else float("inf")

    @property
    def seconds(self) -> float:
        """What the task costs now: its best verified program, else its default, else infinite."""
        default = self.baseline.seconds if self.baseline else float("inf")
        return min(self.best_seconds, default)

    @property
    def earlier_best_seconds(self) -> float | None:
        """The best time before the newest quarter of the task's batches; None: it is not known."""
        batches = self.best_after_batch
        if len(batches) < 2:
            return None
        before = batches[-1 - max(1, len(batches) // 4)]
        return before if before < float("inf") else None

    @property
    def claimed(self) -> int:
        """Trials that are done, pending or being written."""
        return self.trials + len(self.pending) + self.writing

    def new_proposals(self, proposals: Iterable[Proposal]) -> list[Proposal]:
        """Those whose program was not measured here and is not pending."""
        found: dict[str, Proposal] = {}
        pending = {p.module_hash for p in self.pending.values()}
        for p in proposals:
            known = p.candidate.id in self._known or p.candidate.id in self.pending
            if not known and p.module_hash not in self._hashes and p.module_hash not in pending:
                found.setdefault(p.module_hash, p)
        return list(found.values())

    def end_round(self, programs: int, refused: int) -> None:
        """A generator has written; a space without new programs is exhausted.

        A large space in which TVM refuses every candidate must not keep a job from ending either.
        """
        self.empty_rounds = 0 if programs else self.empty_rounds + 1
        self.exhausted = self.empty_rounds > (_MAX_EMPTY_ROUNDS if refused else 0)


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
    """By which share the newest quarter of the batches of each task lowered the weighted sum. None:
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
    weights: dict[str, int] = field(default_factory=dict)
    tasks: list[TaskState] = field(default_factory=list)
    state: JobState = JobState.RUNNING
    reason: str = ""
    begun: float = 0.0
    ended: float = 0.0
    measured_now: int = 0
    current: str = ""
    since: float | None = None
    """When the first candidate was measured."""
    past_deadline: bool = False
    """The time budget is over: only tasks without a program get candidates."""

    def add(self, task: TaskState, weight: int) -> bool:
        """Add a task; False where the job has it already."""
        new = task.task.id not in self.weights
        if new:
            self.tasks.append(task)
        self.weights[task.task.id] = weight
        return new

    def weight(self, task: TaskState) -> int:
        """How often the job's model runs the task."""
        return self.weights[task.task.id]

    def room(self, task: TaskState) -> int:
        """How many more candidates of a task the job wants."""
        if task.exhausted or (self.past_deadline and task.best is not None):
            return 0
        return max(0, self.trials - task.claimed) if self.trials else 1 << 30

    def is_measured(self, task: TaskState) -> bool:
        """Whether the job wants no more candidates of a task, and none is pending."""
        if task.pending or task.writing:
            return False
        return task.exhausted or (self.trials > 0 and task.trials >= self.trials)

    def is_finished_with(self, task: TaskState) -> bool:
        """Whether nothing of a task is left to measure, its finalists included."""
        if not self.is_measured(task) or task.comparing:
            return False
        return self.corpus or self.past_deadline or not task.finalists

    def update(self, now: float) -> bool:
        """Whether the job has what it asked for, or is out of time with a program for every task.

        A task whose candidates fail keeps its trials to find one that works.
        """
        if self.since is None and self.measured_now:
            self.since = now
        if self.budget_s is not None and self.since is not None:
            self.past_deadline = now >= self.since + self.budget_s
        if self.past_deadline and all(t.best or self.is_finished_with(t) for t in self.tasks):
            return True
        return all(map(self.is_finished_with, self.tasks))

    def progress(self, now: float) -> Progress:
        """How far the job is at the time `now` of the worker pool."""
        timed = [t for t in self.tasks if t.best is not None and t.baseline is not None]
        planned = sum(t.trials if t.exhausted else self.trials for t in self.tasks)
        return Progress(
            self.current,
            sum(map(self.is_finished_with, self.tasks)),
            len(self.tasks),
            sum(t.trials for t in self.tasks),
            self.measured_now,
            planned if self.trials else 0,
            sum(t.failed for t in self.tasks),
            sum(self.weight(t) * t.best_seconds for t in timed),
            sum(self.weight(t) * t.baseline.seconds for t in timed if t.baseline),
            (self.ended or now) - self.begun,
            self._recent_gain(),
        )

    def _recent_gain(self) -> float | None:
        known = [(t, t.earlier_best_seconds) for t in self.tasks if t.best is not None]
        pairs = [(self.weight(t), s, min(t.best_seconds, s)) for t, s in known if s is not None]
        earlier = sum(weight * before for weight, before, _ in pairs)
        now = sum(weight * best for weight, _, best in pairs)
        whole = sum(self.weight(t) * t.best_seconds for t, _ in known)
        return 1 - now / earlier if earlier and now >= _MOST * whole else None
