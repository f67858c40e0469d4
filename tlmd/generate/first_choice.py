"""The first choice for a task of which nothing was measured: the cost model's, within a second.

The language model is not asked. After a search on decisions it makes no difference who has drawn
the first candidates (`python -m benchmarks.device_search`), and its samples are most of the cost.
Only decisions are looked at, and few: twice as many draws and moves, or the features of the
programs of eight candidates, take three to five times as long, for programs as fast within 2 % (46
tasks).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tlmd.data.types import Candidate
from tlmd.generate.limits import drawn_within
from tlmd.generate.search import DecisionSearch
from tlmd.space.space import TaskSpace
from tlmd.tlm.cost_model import CostModel

_DRAWN = 64
_GENERATIONS = 6


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
        drawn = filter(None, (drawn_within(rng, space) for _ in range(_DRAWN)))
        start = {c.id: c for c in [*near, *drawn]}
        ordered = list(start.values())
        if self._cost_model.knows_decisions:
            ordered = search.explore(ordered, _GENERATIONS)
        return next(filter(space.accepts, search.diverse(ordered, len(ordered))), None)
