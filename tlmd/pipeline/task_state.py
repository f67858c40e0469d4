"""The state of one task on one kind of machine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tlmd.data.selection import leaders, leading, winner
from tlmd.data.types import Baseline, Candidate, Proposal, Record, Status, Task

_MAX_EMPTY_ROUNDS = 4  # rounds in which TVM refuses every candidate, before a task is exhausted
INCUMBENTS = 16
"""The fastest records of a task, which a generator gets to refine."""
EARLIER = 4
"""Known programs, or records of older revisions of a task, which are tried first."""
_RECENT = 3  # batches of a task whose gain is carried forward
_OPTIMISM = 0.5  # share of a task's time that its n-th trial may still save, times 1 / n


@dataclass
class TaskState:
    """The records of a task on one kind of machine, and its candidates in flight."""

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
    newest_batch: int = -1
    """The last batch with candidates of the task; -1: there was none."""
    earlier: tuple[Candidate, ...] = ()
    """Its known programs, or else the fastest candidates of older revisions of the task
    (`RecordStore.earlier_records`)."""
    known_s: float = math.inf
    """Seconds of its best known program where it was measured; infinite: there is none."""
    pending: dict[str, Proposal] = field(default_factory=dict)
    """Proposals without a record yet, by candidate id."""

    def __post_init__(self) -> None:
        self.trials = 0
        self.failed = 0
        self.best: Record | None = None
        self.comparing = False  # a slot compares finalists of its group
        self.comparisons = 0  # of its group, since the newest record
        self.best_after_batch: list[float] = []  # seconds
        self.history: list[tuple[str, str]] = []
        """Ids and module hashes of all candidates measured here or pending. It only grows, but for
        `drop`."""
        self.history_begun = 0
        """How often it was begun anew."""
        self._leaders: list[Record] = []
        self._fastest: tuple[Record, ...] = ()
        self._ids: set[str] = set()
        self._hashes: set[str] = set()
        records, self.records = self.records, []
        self.add(records)

    def add(self, records: Iterable[Record]) -> None:
        """Add new records. An imported one does not count as a trial."""
        own = []
        for record in records:
            self.records.append(record)
            self.pending.pop(record.candidate.id, None)
            self.failed += not record.outcome.ok
            if record.batch < 0:
                continue
            own.append(record)
            self.newest_batch = max(self.newest_batch, record.batch)
            self._remember(record.candidate.id, record.module_hash)
            self.trials += record.outcome.status is not Status.INVALID
            self.comparisons = 0
        full = len(self._fastest) == INCUMBENTS
        slowest = self._fastest[-1].outcome.seconds if full else math.inf
        fast = [r for r in own if r.outcome.verified and r.outcome.seconds < slowest]
        if fast:
            self._fastest = leading([*self._fastest, *fast], INCUMBENTS)
        self._lead([*self._leaders, *own])

    def wait_for(self, proposals: Iterable[Proposal]) -> None:
        """These will be measured."""
        for proposal in proposals:
            self.pending[proposal.candidate.id] = proposal
            self._remember(proposal.candidate.id, proposal.module_hash)

    def drop(self, candidate_ids: Iterable[str]) -> None:
        """These will not be measured, and may be written again."""
        dropped = {key for key in candidate_ids if self.pending.pop(key, None) is not None}
        kept = [entry for entry in self.history if entry[0] not in dropped]
        self.history, self._ids, self._hashes = [], set(), set()
        self.history_begun += 1
        for candidate_id, module_hash in kept:
            self._remember(candidate_id, module_hash)

    def _remember(self, candidate_id: str, module_hash: str) -> None:
        if candidate_id not in self._ids:
            self._ids.add(candidate_id)
            self._hashes.add(module_hash or candidate_id)
            self.history.append((candidate_id, module_hash))

    def replace(self, records: Iterable[Record]) -> None:
        """Replace the records of the same candidates, after a comparison."""
        newest = {r.candidate.id: r for r in records}
        self.records = [newest.get(r.candidate.id, r) for r in self.records]
        self._fastest = leading(self.own, INCUMBENTS)
        self._lead(self.own)

    def _lead(self, rivals: Iterable[Record]) -> None:
        """Find the best among `rivals`."""
        compared, alone = leaders(rivals)
        self._leaders = [record for record in (compared, alone) if record is not None]
        self.best = winner(compared, alone)

    @property
    def own(self) -> tuple[Record, ...]:
        """Records that were measured here; an imported candidate may be measured again."""
        return tuple(r for r in self.records if r.batch >= 0)

    @property
    def fastest(self) -> tuple[Record, ...]:
        """At most `INCUMBENTS` verified records with the shortest times, the best first."""
        return self._fastest

    @property
    def best_seconds(self) -> float:
        return self.best.outcome.seconds if self.best else float("inf")

    @property
    def seconds(self) -> float:
        """The cost of the task now: its best verified program, else its default, else infinite."""
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
    def expected_gain(self) -> float:
        """The share of the task's time that its next candidates may save.

        As in the task schedulers of Ansor and MetaSchedule: what the last batches gained, and an
        optimistic term that falls with the number of trials.
        """
        recent = self.best_after_batch[-_RECENT - 1 :]
        gained = 0.0
        if len(recent) > 1 and math.isfinite(recent[0]):
            gained = (1 - recent[-1] / recent[0]) / (len(recent) - 1)
        return max(gained, _OPTIMISM / (1 + self.trials))

    @property
    def claimed(self) -> int:
        """Trials that are done, pending or being written."""
        return self.trials + len(self.pending) + self.writing

    def knows(self, candidate: Candidate) -> bool:
        """Whether it was measured here, or is pending."""
        return candidate.id in self._ids

    def new_proposals(self, proposals: Iterable[Proposal]) -> list[Proposal]:
        """The proposals whose program was not measured here and is not pending."""
        by_module: dict[str, Proposal] = {}
        for p in proposals:
            if p.candidate.id not in self._ids and p.module_hash not in self._hashes:
                by_module.setdefault(p.module_hash, p)
        return list(by_module.values())

    def end_round(self, programs: int, refused: int) -> None:
        """A generator has written; a space without new programs is exhausted.

        A large space in which TVM refuses every candidate must not keep a job from ending either.
        """
        self.empty_rounds = 0 if programs else self.empty_rounds + 1
        self.exhausted = self.empty_rounds > (_MAX_EMPTY_ROUNDS if refused else 0)
