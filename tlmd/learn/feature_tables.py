"""Features and times of measured records: what the cost model is trained on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tlmd.data.types import Record, Task
from tlmd.space.cache import SpaceCache
from tlmd.space.features import WIDTH, FeatureExtractors, speedup, unpack_features
from tlmd.space.space import InvalidCandidate
from tlmd.tlm import decision_features as decided
from tlmd.tlm.cost_model import Floats, Measured

_FEWEST = 4  # records of a task; fewer show no order


class FeatureTables:
    """Takes the features from the records; makes those that a record lacks, and keeps them."""

    def __init__(self, spaces: SpaceCache) -> None:
        self._spaces = spaces
        self._extractors = FeatureExtractors()
        self._made: dict[str, Floats | None] = {}
        self._decided: dict[str, Any] = {}  # float16, of which there is one row per record

    def tables(
        self, tasks: Iterable[Task], records: Mapping[str, Sequence[Record]]
    ) -> list[Measured]:
        """The tables of the tasks that have enough records; `records` by the tasks' ids."""
        return [self.table(t, records[t.id]) for t in tasks if len(records[t.id]) >= _FEWEST]

    def table(self, task: Task, records: Sequence[Record]) -> Measured:
        """Features, seconds and weights of the records that have a program."""
        rows = [self.row(task, record) for record in records]
        pairs = [(r, row) for r, row in zip(records, rows, strict=True) if row is not None]
        features = (
            np.stack([row for _, row in pairs]) if pairs else np.zeros((0, WIDTH), np.float32)
        )
        return Measured(
            features,
            np.array([r.outcome.seconds for r, _ in pairs], np.float64),
            np.array([r.outcome.weight for r, _ in pairs], np.float32),
            speedup(features, task.target.cores),
            self._decisions(task, [r for r, _ in pairs]),
        )

    def forget(self, candidate_id: str) -> None:
        """Drop what is kept of a candidate."""
        self._made.pop(candidate_id, None)
        self._decided.pop(candidate_id, None)

    def _decisions(self, task: Task, records: Sequence[Record]) -> Floats:
        """The decision features of the records ``[n, decision_features.WIDTH]``."""
        new = {r.candidate.id: r.candidate for r in records if r.candidate.id not in self._decided}
        if new:
            space = self._spaces.get(task)
            rows = decided.decision_features(space.computation, space.sketches, list(new.values()))
            self._decided |= zip(new, rows.astype(np.float16), strict=True)
        kept = [self._decided[r.candidate.id] for r in records]
        return (
            np.stack(kept).astype(np.float32) if kept else np.zeros((0, decided.WIDTH), np.float32)
        )

    def row(self, task: Task, record: Record) -> Floats | None:
        """The features ``[WIDTH]`` of a record; None where TVM refuses its candidate today."""
        stored = unpack_features(record.features)
        if stored is not None:
            return stored
        candidate = record.candidate
        if candidate.id not in self._made:
            try:
                schedule = self._spaces.get(task).finish(candidate)
                self._made[candidate.id] = self._extractors.of(task.target).rows([schedule])[0]
            except InvalidCandidate:
                self._made[candidate.id] = None
        return self._made[candidate.id]
