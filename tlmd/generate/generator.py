"""The generator: propose widely, rank on decisions, apply, extract features, pick the best."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from tlmd.data.config import GenerateConfig
from tlmd.data.types import Candidate, Proposal, Record, Task, Writer
from tlmd.generate.apply import apply_new
from tlmd.generate.carry import carried_over
from tlmd.generate.pick import pick
from tlmd.generate.propose import NOT_THE_TLM, Proposer, WrittenCandidate
from tlmd.generate.search import DecisionSearch, structure
from tlmd.processes.stage_times import stage
from tlmd.space.cache import SpaceCache
from tlmd.space.features import FeatureExtractors, pack_features, speedup
from tlmd.space.space import TaskSpace
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.cost_model import Floats
from tlmd.tlm.decision_features import decision_features

_FEWEST = 8  # candidates that are applied, so that the cost model has a choice


class Generator:
    """Writes proposals with one checkpoint; `swap` replaces it between two calls.

    Reproducible for a seed. Not thread-safe.
    """

    def __init__(
        self, checkpoint: Checkpoint, config: GenerateConfig | None = None, seed: int = 0
    ) -> None:
        self._config = config or GenerateConfig()
        self._rng = random.Random(seed)
        self._spaces = SpaceCache()
        self._extractors = FeatureExtractors()
        self._checkpoint = checkpoint
        self._proposer = Proposer(checkpoint, self._config, self._rng, seed)

    @property
    def version(self) -> int:
        """The checkpoint that it uses."""
        return self._checkpoint.version

    def swap(self, checkpoint: Checkpoint) -> int:
        """Use `checkpoint` from the next call on; the version now in use."""
        seed = self._rng.randrange(1 << 30)
        self._checkpoint = checkpoint
        self._proposer = Proposer(checkpoint, self._config, self._rng, seed)
        return self.version

    def write(
        self,
        task: Task,
        count: int,
        records: Sequence[Record],
        avoid: Collection[tuple[str, str]] = (),
        oversample: float | None = None,
        earlier: Sequence[Candidate] = (),
    ) -> tuple[list[Proposal], list[Record]]:
        """At most `count` new candidates of `task`, best first; fewer when the space is exhausted.

        `records` were measured; `avoid` are ids and module hashes of other candidates that must not
        be written again. `oversample` replaces the configured one. `earlier` are known programs of
        the task, or candidates of older revisions; those that fit into the task's space come first.
        The second list has a record of each candidate that TVM refused, with the reason; such a
        candidate is never built.
        """
        with stage("write: space"):
            space = self._spaces.get(task)
        total = max(round(count * (oversample or self._config.oversample)), _FEWEST)
        ids = {r.candidate.id for r in records} | {candidate_id for candidate_id, _ in avoid}
        hashes = {r.module_hash for r in records} | {digest for _, digest in avoid}
        with stage("write: propose"):
            written = self._proposer.propose(space, total, records)
        wide, unranked = ([one for one in of if one.candidate.id not in ids] for of in written)
        with stage("write: search"):
            chosen = self._narrow(space, wide, total - len(unranked), ids) + unranked
        carried = _tried_first(space, earlier)
        with stage("write: apply"):
            applied, refused = apply_new(space, [*carried, *chosen], ids, hashes)
        with stage("write: features"):
            features = self._extractors.of(task.target).rows([one.schedule for one in applied])
        candidates = [one.written.candidate for one in applied]
        scores = self._scores(space, candidates, features)
        structures = [structure(space.sketches[c.sketch], c) for c in candidates]
        first = [i for i, one in enumerate(applied) if one.written in carried]
        others = pick(scores, structures, count, self._config.explore, self._rng)
        picked = [*first, *(i for i in others if i not in first)][:count]
        proposals = [
            Proposal(
                candidates[i],
                space.trace_json(candidates[i]),
                applied[i].module_hash,
                applied[i].written.version,
                score=0.0 if scores is None else float(scores[i]),
                picked_by=self.version,
                features=pack_features(features[i]),
                writer=applied[i].written.writer,
            )
            for i in picked
        ]
        return proposals, refused

    def _narrow(
        self,
        space: TaskSpace,
        wide: Sequence[WrittenCandidate],
        count: int,
        avoid: set[str],
    ) -> list[WrittenCandidate]:
        """The `count` candidates that are applied."""
        written = {one.candidate.id: one for one in wide}
        cost_model = self._checkpoint.cost_model
        if not cost_model.knows_decisions:
            return self._first_of_each(list(written.values()))
        search = DecisionSearch(space, cost_model, self._rng, avoid)
        candidates = [one.candidate for one in written.values()]
        ordered = search.explore(candidates, self._config.generations)
        # A candidate that is a changed one of these counts as a refinement.
        return [written.get(c.id, _refined(c)) for c in search.diverse(ordered, count)]

    def _first_of_each(self, written: list[WrittenCandidate]) -> list[WrittenCandidate]:
        """The first of each writer; the TLM's are in the order of its preference."""
        by_writer = [[one for one in written if one.writer is writer] for writer in Writer]
        return [one for part in by_writer for one in part[: len(part) // self._config.wide]]

    def _scores(
        self, space: TaskSpace, candidates: Sequence[Candidate], features: Floats
    ) -> Floats | None:
        """Predicted speeds; None without a trained cost model."""
        cost_model = self._checkpoint.cost_model
        if not cost_model.trained:
            return None
        decisions = decision_features(space.computation, space.sketches, candidates)
        return cost_model.score(features, speedup(features, space.task.target.cores), decisions)


def _tried_first(space: TaskSpace, earlier: Sequence[Candidate]) -> list[WrittenCandidate]:
    known = {candidate.id for candidate in earlier}
    return [
        WrittenCandidate(c, Writer.KNOWN if c.id in known else Writer.CARRIED, NOT_THE_TLM)
        for c in carried_over(space, earlier)
    ]


def _refined(candidate: Candidate) -> WrittenCandidate:
    return WrittenCandidate(candidate, Writer.REFINEMENT, NOT_THE_TLM)
