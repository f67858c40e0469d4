"""The first choice for a task of which nothing was measured: the cost model's, within a second.

The language model is not asked. After a search on decisions it makes no difference who has drawn
the first candidates (`python -m benchmarks.device_search`), and its samples are most of the cost.
Only decisions are looked at: to apply eight candidates and to ask for the features of their
programs takes half of the time and made ResNet-18 and BERT-small no faster.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tlmd.data.types import Candidate, Writer
from tlmd.generate.apply import apply_new
from tlmd.generate.limits import repaired
from tlmd.generate.propose import NOT_THE_TLM, WrittenCandidate
from tlmd.generate.search import DecisionSearch
from tlmd.language.uniform import draw_uniform
from tlmd.space.space import TaskSpace
from tlmd.tlm.cost_model import CostModel

_DRAWN = 128
_GENERATIONS = 12


class FirstChoice:
    """Chooses with one cost model. Reproducible for a seed. Not thread-safe."""

    def __init__(self, cost_model: CostModel, seed: int = 0) -> None:
        self._cost_model = cost_model
        self._seed = seed

    def of(self, space: TaskSpace, near: Sequence[Candidate] = ()) -> Candidate | None:
        """The candidate that is predicted to be the fastest; None if TVM refuses all.

        `near` are candidates of the space that were good for a similar task.
        """
        rng = random.Random(f"{self._seed} {space.task.id}")
        search = DecisionSearch(space, self._cost_model, rng)
        start = {c.id: c for c in [*near, *_drawn(rng, space)]}
        ordered = list(start.values())
        if self._cost_model.knows_decisions:
            ordered = search.explore(ordered, _GENERATIONS)
        ids, hashes = set[str](), set[str]()
        for candidate in search.diverse(ordered, len(ordered)):
            written = WrittenCandidate(candidate, Writer.RANDOM, NOT_THE_TLM)
            if apply_new(space, [written], ids, hashes)[0]:
                return candidate
        return None


def _drawn(rng: random.Random, space: TaskSpace) -> list[Candidate]:
    """Candidates at random, within the limits of their sketches."""
    drawn = []
    for _ in range(_DRAWN):
        one = draw_uniform(rng, space.task.id, space.sketches, space.quick_locations)
        decisions = repaired(rng, space.sketches[one.sketch], one.decisions)
        if decisions is not None:
            drawn.append(Candidate(one.task_id, one.sketch, decisions))
    return drawn
