"""Picking what is measured: the cost model's best, and a random share that shows its mistakes."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

import numpy as np

from tlmd.tlm.cost_model import Floats


def pick(
    scores: Floats | None,
    structures: Sequence[Hashable],
    count: int,
    explore: float,
    rng: random.Random,
) -> list[int]:
    """At most `count` of the candidates, the best first; a share `explore` is random.

    `scores` ``[candidates]`` are predicted speeds; None: a random order. Of candidates with the
    same structure one is taken before any second: they are often equally fast.
    """
    order = [int(i) for i in np.argsort(-scores, kind="stable")] if scores is not None else []
    if scores is None:
        order = list(range(len(structures)))
        rng.shuffle(order)
    explored = min(round(count * explore), max(len(order) - count, 0))
    order = _distinct_first(order, structures)
    top, rest = order[: count - explored], order[count - explored :]
    return top + rng.sample(rest, min(explored, len(rest)))


def _distinct_first(order: list[int], structures: Sequence[Hashable]) -> list[int]:
    seen: set[Hashable] = set()
    first: list[int] = []
    later: list[int] = []
    for index in order:
        (later if structures[index] in seen else first).append(index)
        seen.add(structures[index])
    return first + later
