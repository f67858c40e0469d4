"""The generator: propose more than is needed, apply and dedupe, extract features, pick the best."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tlmd.config import GenerateConfig
from tlmd.generate.apply import apply_new
from tlmd.generate.pick import pick
from tlmd.generate.propose import Proposer
from tlmd.model.checkpoint import Checkpoint
from tlmd.space.cache import SpaceCache
from tlmd.space.features import FeatureExtractors, pack_features, speedup
from tlmd.types import Proposal, Record, Task


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
        avoid: Sequence[tuple[str, str]] = (),
        oversample: float | None = None,
    ) -> tuple[list[Proposal], list[Record]]:
        """At most `count` new candidates of `task`, best first; fewer when the space is exhausted.

        `records` were measured; `avoid` are ids and module hashes of other candidates that must not
        be written again. `oversample` replaces the configured one. The second list has a record of
        each candidate that TVM refused, with the reason; such a candidate is never built.
        """
        space = self._spaces.get(task)
        total = max(round(count * (oversample or self._config.oversample)), 16)
        written = self._proposer.propose(space, total, records)
        ids = {r.candidate.id for r in records} | {candidate_id for candidate_id, _ in avoid}
        hashes = {r.module_hash for r in records} | {digest for _, digest in avoid}
        applied, refused = apply_new(space, written, ids, hashes)
        schedules: list[Any] = [one.schedule for one in applied]
        features = self._extractors.of(task.target).rows(schedules)
        cost_model, explore = self._checkpoint.cost_model, self._config.explore
        speedups = speedup(features, task.target.cores)
        picked = pick(features, speedups, count, cost_model, explore, self._rng)
        proposals = [
            Proposal(
                applied[i].written.candidate,
                space.trace_json(applied[i].written.candidate),
                applied[i].module_hash,
                applied[i].written.version,
                score=score,
                picked_by=self.version,
                features=pack_features(features[i]),
                writer=applied[i].written.writer,
            )
            for i, score in picked
        ]
        return proposals, refused
