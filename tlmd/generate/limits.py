"""Changes decisions until they keep to the limits of their sketch (threads and memory of a GPU)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tlmd.data.computation import FactorLimit, MemoryLimit, Sketch
from tlmd.data.types import Candidate, Decision
from tlmd.language import grammar
from tlmd.language.uniform import draw_uniform
from tlmd.space.space import TaskSpace

_STEPS = 100  # most need fewer than 20


def repaired(
    rng: random.Random, sketch: Sketch, decisions: Sequence[Decision]
) -> tuple[Decision, ...] | None:
    """`decisions` after small moves that make them legal together; None where they do not.

    A product that is too large gives a prime factor to the outermost part of a tile, one that is
    too small takes one from another part.
    """
    tiles = [list(decision) for decision in decisions]
    for _ in range(_STEPS):
        broken = next((limit for limit in sketch.limits if not limit.allows(tiles)), None)
        if broken is None:
            return tuple(map(tuple, tiles))
        move = _move(rng, broken, tiles)
        if move is None:
            return None
        tile, giver, taker = move
        prime = grammar.divisors(tile[giver])[1]
        tile[giver] //= prime
        tile[taker] *= prime
    return None


def repaired_candidate(
    rng: random.Random, space: TaskSpace, candidate: Candidate
) -> Candidate | None:
    """`candidate` within the limits of its sketch; None where small moves do not bring it there."""
    decisions = repaired(rng, space.sketches[candidate.sketch], candidate.decisions)
    return None if decisions is None else replace(candidate, decisions=decisions)


def drawn_within(rng: random.Random, space: TaskSpace) -> Candidate | None:
    """A candidate at random within the limits of its sketch; None where small moves fail."""
    drawn = draw_uniform(rng, space.task.id, space.sketches, space.quick_locations)
    return repaired_candidate(rng, space, drawn)


def _move(
    rng: random.Random, broken: FactorLimit | MemoryLimit, tiles: list[list[int]]
) -> tuple[list[int], int, int] | None:
    """A tile, and between which of its parts a factor moves."""
    moves: list[tuple[list[int], int, int]] = []
    if isinstance(broken, FactorLimit) and broken.asks_for_more(tiles):
        for index, taker in broken.factors:
            tile = tiles[index]
            moves += [(tile, i, taker) for i, n in enumerate(tile) if n > 1 and i != taker]
    else:
        moves = [(tiles[i], at, 0) for i, at in broken.growing() if tiles[i][at] > 1 and at]
    return rng.choice(moves) if moves else None
