"""Local refinement of an incumbent: small moves that keep a candidate inside the space.

Late in a search most gains come from the neighbourhood of the best program found so far (Droplet,
TACO'24; Helion's hybrid tuner), which a language model samples too thinly.
"""

from __future__ import annotations

import random

from tlmd.data.computation import DecisionKind, OpenDecision, Sketch
from tlmd.data.types import Candidate, Decision
from tlmd.language import grammar
from tlmd.language.legal_words import LegalLocations

_FACTORED = (DecisionKind.TILE, DecisionKind.PARTITION)
_MOVES = (1, 1, 2, 3)


def moved(
    rng: random.Random, sketch: Sketch, start: Candidate, locations: LegalLocations
) -> Candidate | None:
    """`start` after one to three small moves, or None where one of them is not legal."""
    refined: Candidate | None = start
    for _ in range(rng.choice(_MOVES)):
        refined = refined and neighbour(rng, sketch, refined, locations)
    return refined if refined is not None and sketch.allows(refined.decisions) else None


def neighbour(
    rng: random.Random, sketch: Sketch, start: Candidate, locations: LegalLocations
) -> Candidate | None:
    """`start` with one decision moved a little, or None where the move is not legal.

    A tile moves a divisor from one factor to another; other decisions take another legal value. A
    location after the moved decision may have become illegal and is then drawn again.
    """
    movable = [i for i, s in enumerate(sketch.open_decisions) if grammar.places(s)]
    if not movable:
        return None
    at = rng.choice(movable)
    decisions = list(start.decisions)
    moved = _move(rng, sketch, at, decisions, locations)
    if moved is None:
        return None
    decisions[at] = moved
    for later in range(at + 1, len(decisions)):
        if sketch.open_decisions[later].kind is DecisionKind.LOCATION:
            legal = locations(sketch.index, tuple(decisions[:later]))
            if decisions[later][0] not in legal:
                decisions[later] = (rng.choice(legal),)
    return Candidate(start.task_id, start.sketch, tuple(decisions))


def _move(
    rng: random.Random,
    sketch: Sketch,
    at: int,
    decisions: list[Decision],
    locations: LegalLocations,
) -> Decision | None:
    open_decision, old = sketch.open_decisions[at], decisions[at]
    if open_decision.kind in _FACTORED:
        return _move_factor(rng, open_decision, old)
    if open_decision.kind is DecisionKind.LOCATION:
        choices = list(locations(sketch.index, tuple(decisions[:at])))
    elif open_decision.kind is DecisionKind.CATEGORY:
        choices = list(range(len(open_decision.options)))
    else:
        choices = list(open_decision.options)
    others = [c for c in choices if c != old[0]]
    return (rng.choice(others),) if others else None


def _move_factor(rng: random.Random, open_decision: OpenDecision, old: Decision) -> Decision | None:
    givers = [i for i, factor in enumerate(old) if factor > 1]
    if not givers:
        return None
    giver = rng.choice(givers)
    taker = rng.choice([i for i in range(len(old)) if i != giver])
    divisor = rng.choice([d for d in grammar.divisors(old[giver]) if d > 1])
    factors = list(old)
    factors[giver] //= divisor
    factors[taker] *= divisor
    try:
        grammar.to_values(open_decision, tuple(factors))
    except ValueError:
        return None
    return tuple(factors)
