"""Searching among candidates that are only written: rank on decisions, then improve by moves.

Applying a candidate takes TVM 10 to 20 ms; ranking its decisions takes 0.1 ms. So many more are
ranked than are applied. The best are moved a little and ranked again, for some generations, as in
evolutionary search (Ansor, OSDI'20, section 5.1), but without applying anything.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Hashable, Sequence

from tlmd.data.computation import DecisionKind, Sketch
from tlmd.data.types import Candidate
from tlmd.generate.refine import moved
from tlmd.space.space import TaskSpace
from tlmd.tlm.cost_model import CostModel
from tlmd.tlm.decision_features import decision_features, decision_speedup

_PARENTS = 16
_CHILDREN = 4  # of each parent in a generation
_SCALARS = (DecisionKind.CATEGORY, DecisionKind.PARALLEL)
_EQUAL = 2  # candidates that differ in scalars only and are applied together, at most


class DecisionSearch:
    """Ranks and improves candidates of one task by the cost model's trees on decisions.

    `avoid` are the ids of candidates that must not be written again.
    """

    def __init__(
        self,
        space: TaskSpace,
        cost_model: CostModel,
        rng: random.Random,
        avoid: Collection[str] = (),
    ) -> None:
        self.scores: dict[str, float] = {}
        """Predicted speed of every candidate that was ranked, by its id."""
        self._space = space
        self._cost_model = cost_model
        self._rng = rng
        self._avoid = avoid

    def explore(self, candidates: Sequence[Candidate], generations: int) -> list[Candidate]:
        """These candidates and what moving the best made of them, each once, the best first."""
        population = {candidate.id: candidate for candidate in candidates}
        self._rank(list(population.values()))
        for _ in range(generations):
            parents = self._in_order(population.values())[:_PARENTS]
            children = [child for parent in parents for child in self._moved(parent)]
            new = {c.id: c for c in children if c.id not in population and c.id not in self._avoid}
            self._rank(list(new.values()))
            population |= new
        return self._in_order(population.values())

    def diverse(self, ordered: Sequence[Candidate], count: int) -> list[Candidate]:
        """The first `count`, of which at most `_EQUAL` differ in scalars only."""
        seen: Counter[Hashable] = Counter()
        chosen: list[Candidate] = []
        for candidate in ordered:
            if len(chosen) == count:
                break
            shape = structure(self._space.sketches[candidate.sketch], candidate)
            seen[shape] += 1
            if seen[shape] <= _EQUAL:
                chosen.append(candidate)
        return chosen

    def _rank(self, candidates: Sequence[Candidate]) -> None:
        space = self._space
        rows = decision_features(space.computation, space.sketches, candidates)
        speedups = decision_speedup(rows, space.task.target.cores)
        scores = self._cost_model.score_decisions(rows, speedups)
        self.scores |= zip((c.id for c in candidates), map(float, scores), strict=True)

    def _in_order(self, candidates: Collection[Candidate]) -> list[Candidate]:
        return sorted(candidates, key=lambda candidate: -self.scores[candidate.id])

    def _moved(self, parent: Candidate) -> list[Candidate]:
        sketch, locations = self._space.sketches[parent.sketch], self._space.quick_locations
        made = (moved(self._rng, sketch, parent, locations) for _ in range(_CHILDREN))
        return [child for child in made if child is not None]


def structure(sketch: Sketch, candidate: Candidate) -> Hashable:
    """A candidate without its scalars (unrolling and the parallel extent)."""
    pairs = zip(sketch.open_decisions, candidate.decisions, strict=True)
    return sketch.index, tuple(decision for one, decision in pairs if one.kind not in _SCALARS)
