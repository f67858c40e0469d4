"""Local refinement of an incumbent: small moves that keep a candidate inside the space.

Late in a search most gains come from the neighbourhood of the best program found so far (Droplet,
TACO'24; Helion's hybrid tuner), which a language model samples too thinly.
"""

from __future__ import annotations

import random

from tlmd.language import grammar
from tlmd.model.sampling import LegalLocations
from tlmd.types import Candidate, Decision, Sketch, Slot, SlotKind

_FACTORED = (SlotKind.TILE, SlotKind.PARTITION)


def neighbour(
    rng: random.Random, sketch: Sketch, start: Candidate, locations: LegalLocations
) -> Candidate | None:
    """`start` with one decision moved a little, or None where the move is not legal.

    A tile moves a divisor from one factor to another; other decisions take another legal value. A
    location after the moved decision may have become illegal and is then drawn again.
    """
    open_slots = [i for i, s in enumerate(sketch.slots) if grammar.places(s)]
    if not open_slots:
        return None
    at = rng.choice(open_slots)
    decisions = list(start.decisions)
    moved = _move(rng, sketch, at, decisions, locations)
    if moved is None:
        return None
    decisions[at] = moved
    for later in range(at + 1, len(decisions)):
        if sketch.slots[later].kind is SlotKind.LOCATION:
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
    slot, old = sketch.slots[at], decisions[at]
    if slot.kind in _FACTORED:
        return _move_factor(rng, slot, old)
    if slot.kind is SlotKind.LOCATION:
        choices = list(locations(sketch.index, tuple(decisions[:at])))
    elif slot.kind is SlotKind.CATEGORY:
        choices = list(range(len(slot.options)))
    else:
        choices = list(slot.options)
    others = [c for c in choices if c != old[0]]
    return (rng.choice(others),) if others else None


def _move_factor(rng: random.Random, slot: Slot, old: Decision) -> Decision | None:
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
        grammar.to_values(slot, tuple(factors))
    except ValueError:
        return None
    return tuple(factors)
