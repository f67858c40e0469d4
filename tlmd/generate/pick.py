"""Picking what is measured: the cost model's best, and a random share that shows its mistakes."""

from __future__ import annotations

import random

import numpy as np

from tlmd.model.cost_model import CostModel, Floats


def pick(
    features: Floats,
    speedups: Floats,
    count: int,
    cost_model: CostModel,
    explore: float,
    rng: random.Random,
) -> list[tuple[int, float]]:
    """At most `count` rows with their scores, the best first; a share `explore` is random.

    `features` are the rows ``[candidates, width]`` that the cost model scores, `speedups` what
    several cores make of each. A cost model that was never trained picks at random.
    """
    scores = cost_model.score(features, speedups)
    order = [int(i) for i in np.argsort(-scores, kind="stable")]
    if not cost_model.trained:
        rng.shuffle(order)
    explored = min(round(count * explore), max(len(order) - count, 0))
    top, rest = order[: count - explored], order[count - explored :]
    picked = top + rng.sample(rest, min(explored, len(rest)))
    return [(i, float(scores[i])) for i in picked]
