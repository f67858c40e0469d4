"""Picking what is measured: the cost model's best, and a random share that shows its mistakes."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

import numpy as np

from tlmd.model.cost_model import Floats


def pick(
    scores: Floats | None,
    structures: Sequence[Hashable],
    count: int,
    explore: float,
    rng: random.Random,
    untried: Sequence[Hashable] = (),
) -> list[int]:
    """At most `count` of the candidates, the best first; a share `explore` is random.

    `scores` ``[candidates]`` are predicted speeds; None: a random order. Of candidates with the
    same structure one is taken before any second: they are often equally fast. `untried` has the
    sketch of each candidate, or None where it was measured before: instead of a random one, the
    best of a sketch comes first that is new and that the cost model would not choose.
    """
    order = [int(i) for i in np.argsort(-scores, kind="stable")] if scores is not None else []
    if scores is None:
        order = list(range(len(structures)))
        rng.shuffle(order)
    explored = min(round(count * explore), max(len(order) - count, 0))
    order = _distinct_first(order, structures)
    top, rest = order[: count - explored], order[count - explored :]
    new: list[int] = []
    if untried:
        new = _first_of_each(rest, untried, {None, *(untried[i] for i in top)})[:explored]
    rest = [index for index in rest if index not in new]
    return top + new + rng.sample(rest, min(explored - len(new), len(rest)))


def _first_of_each(
    order: Sequence[int], sketches: Sequence[Hashable], seen: set[Hashable]
) -> list[int]:
    """The first candidate of each sketch that was not `seen`."""
    found = []
    for index in order:
        if sketches[index] not in seen:
            found.append(index)
        seen.add(sketches[index])
    return found


def _distinct_first(order: list[int], structures: Sequence[Hashable]) -> list[int]:
    seen: set[Hashable] = set()
    first: list[int] = []
    later: list[int] = []
    for index in order:
        (later if structures[index] in seen else first).append(index)
        seen.add(structures[index])
    return first + later
