"""The generator: over-generate, drop duplicates, rank, keep the top and a share of exploration."""

from __future__ import annotations

import contextlib
import random
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tlmd.generate.refine import neighbour
from tlmd.language.prompt import prompt
from tlmd.model.checkpoint import Checkpoint
from tlmd.model.ranker import Floats, Measured
from tlmd.model.sampling import Request, Sampler
from tlmd.ranking import leading
from tlmd.space.features import WIDTH, FeatureExtractor
from tlmd.space.space import InvalidCandidate, TaskSpace, module_hash
from tlmd.types import Candidate, Outcome, Proposal, Record, Status, Task

_KEPT = np.float16  # of features: logarithms, for which three digits do
_LARGEST = 65504.0
_SPACES = 64  # task spaces kept in memory
SEARCHED = -1  # the version of a candidate that refinement wrote, not the TLM


@dataclass(frozen=True)
class Policy:
    """How candidates are chosen.

    ``over`` proposals are written for each one kept, ``refined`` is the share of them that comes
    from the incumbents' neighbourhood once there are any, ``uniform`` the share that is drawn at
    random, and ``explore`` the share of the kept ones that the ranker has no say in.
    """

    over: int = 8
    refined: float = 0.5
    explore: float = 0.12
    incumbents: int = 3
    temperature: float = 1.0
    uniform: float = 0.2


@dataclass
class Generator:
    """Writes proposals with one checkpoint at a time; `swap` replaces it between calls."""

    checkpoint: Checkpoint
    policy: Policy = field(default_factory=Policy)
    seed: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._sampler = Sampler(self.checkpoint.model, self.seed)
        self._spaces: OrderedDict[str, TaskSpace] = OrderedDict()
        self._extractors: dict[str, FeatureExtractor] = {}
        self._rows: dict[str, Floats | None] = {}

    @property
    def version(self) -> int:
        return self.checkpoint.version

    def swap(self, checkpoint: Checkpoint) -> int:
        """Use `checkpoint` from the next call on; the version now in use."""
        self.checkpoint = checkpoint
        self._sampler = Sampler(checkpoint.model, self._rng.randrange(1 << 30))
        return self.version

    def space(self, task: Task) -> TaskSpace:
        """The task's space, from a small cache."""
        if task.id not in self._spaces:
            self._spaces[task.id] = TaskSpace(task)
            if len(self._spaces) > _SPACES:
                self._spaces.popitem(last=False)
        self._spaces.move_to_end(task.id)
        return self._spaces[task.id]

    def write(
        self,
        task: Task,
        count: int,
        records: Sequence[Record],
        avoid: Sequence[tuple[str, str]] = (),
        over: float | None = None,
    ) -> tuple[list[Proposal], list[Record]]:
        """At most `count` new candidates of `task`, best first; fewer when the space is exhausted.

        `records` is what has been measured of the task and `avoid` are the ids and module hashes of
        what is on its way: none of it is written again. `over` replaces the policy's. The second
        list holds records of candidates that TVM refused, with its reason; they are never built.
        """
        space = self.space(task)
        ids = {r.candidate.id for r in records} | {candidate_id for candidate_id, _ in avoid}
        hashes = {r.module_hash for r in records} | {digest for _, digest in avoid}
        pool: list[Proposal] = []
        schedules: list[Any] = []
        refused: list[Record] = []
        for candidate, version in self._written(space, count, records, over or self.policy.over):
            if candidate.id in ids:
                continue
            ids.add(candidate.id)
            try:
                schedule = space.finish(candidate)
            except InvalidCandidate as error:
                refused.append(_refusal(task, candidate, version, str(error)))
                continue
            digest = module_hash(schedule.mod)
            if digest not in hashes:
                hashes.add(digest)
                schedules.append(schedule)
                trace = space.trace_json(candidate)
                pool.append(Proposal(candidate, trace, digest, version, ranked=self.version))
        rows = self.extractor(task).rows(schedules)
        return self._pick(pool, rows, count), refused

    def table(self, task: Task, records: list[Record]) -> Measured:
        """Features and seconds of the records that have a program."""
        rows = [self._row(task, record) for record in records]
        pairs = [(r, row) for r, row in zip(records, rows, strict=True) if row is not None]
        return Measured(
            np.stack([row for _, row in pairs]) if pairs else np.zeros((0, WIDTH), np.float32),
            np.array([r.outcome.seconds for r, _ in pairs], np.float64),
            np.array([r.outcome.weight for r, _ in pairs], np.float32),
        )

    def _row(self, task: Task, record: Record) -> Floats | None:
        """The features of a record, computed where it has none; None without a program."""
        if len(record.features) == WIDTH * np.dtype(_KEPT).itemsize:
            return np.frombuffer(record.features, _KEPT).astype(np.float32)
        candidate = record.candidate
        if candidate.id not in self._rows:
            try:
                schedule = self.space(task).finish(candidate)
                self._rows[candidate.id] = self.extractor(task).rows([schedule])[0]
            except InvalidCandidate:
                self._rows[candidate.id] = None
        return self._rows[candidate.id]

    def extractor(self, task: Task) -> FeatureExtractor:
        """The feature extractor of the task's target."""
        if task.target.spec not in self._extractors:
            self._extractors[task.target.spec] = FeatureExtractor(task.target)
        return self._extractors[task.target.spec]

    def _written(
        self, space: TaskSpace, count: int, records: Sequence[Record], over: float
    ) -> list[tuple[Candidate, int]]:
        """Candidates by the TLM and, once there are incumbents, by refinement; not yet checked."""
        policy = self.policy
        total = max(round(count * over), 16)
        incumbents = [r.candidate for r in leading(records, policy.incumbents)]
        near = int(total * policy.refined) if incumbents else 0
        written = [(c, SEARCHED) for c in self._neighbours(space, incumbents, near)]
        # A TLM that has settled on something wrong must not be all that the ranker can choose from.
        written += [(c, SEARCHED) for c in self._drawn(space, int(total * policy.uniform))]
        request = Request(
            space.task.id,
            tuple(prompt(space.computation, space.task.target, space.sketches)),
            space.sketches,
            space.locations,
            total - len(written),
            temperature=policy.temperature,
        )
        return written + [(s.candidate, self.version) for s in self._sampler.sample(request)]

    def _drawn(self, space: TaskSpace, count: int) -> list[Candidate]:
        found = []
        for _ in range(count):
            with contextlib.suppress(InvalidCandidate):
                found.append(space.random(self._rng))
        return found

    def _neighbours(
        self, space: TaskSpace, incumbents: list[Candidate], count: int
    ) -> list[Candidate]:
        found: dict[str, Candidate] = {}
        for _ in range(2 * count):
            if len(found) >= count:
                break
            start = self._rng.choice(incumbents)
            sketch = space.sketches[start.sketch]
            moved: Candidate | None = start
            for _ in range(self._rng.choice((1, 1, 2, 3))):
                moved = moved and neighbour(self._rng, sketch, moved, space.locations)
            if moved is not None:
                found[moved.id] = moved
        return list(found.values())

    def _pick(self, pool: list[Proposal], rows: Floats, count: int) -> list[Proposal]:
        """The ranker's top, and a share drawn at random so that its mistakes show."""
        scores = self.checkpoint.ranker.score(rows)
        order = [int(i) for i in np.argsort(-scores, kind="stable")]
        if not self.checkpoint.ranker.trained:
            self._rng.shuffle(order)
        explore = min(round(count * self.policy.explore), max(len(order) - count, 0))
        top, rest = order[: count - explore], order[count - explore :]
        picked = top + self._rng.sample(rest, min(explore, len(rest)))
        return [replace(pool[i], score=float(scores[i]), features=_kept(rows[i])) for i in picked]


def _kept(row: Floats) -> bytes:
    return np.clip(row, -_LARGEST, _LARGEST).astype(_KEPT).tobytes()


def _refusal(task: Task, candidate: Candidate, version: int, reason: str) -> Record:
    outcome = Outcome(Status.INVALID, detail=reason)
    fingerprint = task.target.fingerprint
    return Record(candidate, outcome, version, fingerprint=fingerprint, created=time.time())
