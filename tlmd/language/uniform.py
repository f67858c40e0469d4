"""Drawing candidates at random: every legal value of each decision is equally probable."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tlmd.data.computation import DecisionKind, OpenDecision, Sketch
from tlmd.data.types import Candidate, Decision
from tlmd.language import grammar
from tlmd.language.legal_words import LegalLocations
from tlmd.language.vocabulary import MAX_SKETCHES


def draw_uniform(
    rng: random.Random, task_id: str, sketches: Sequence[Sketch], locations: LegalLocations
) -> Candidate:
    """A candidate that the language can express. TVM may still refuse it when it is applied."""
    sketch = rng.choice(sketches[:MAX_SKETCHES])
    decisions: list[Decision] = []
    for open_decision in sketch.open_decisions:
        if open_decision.kind is DecisionKind.LOCATION:
            legal = locations(sketch.index, tuple(decisions))
            decisions.append((rng.choice(legal),))
        else:
            values = _values(rng, open_decision)
            decisions.append(grammar.to_decision(open_decision, values))
    return Candidate(task_id, sketch.index, tuple(decisions))


def _values(rng: random.Random, open_decision: OpenDecision) -> list[int]:
    table = grammar.values_of(open_decision).numbers
    remaining, inner = open_decision.extent, 1
    values: list[int] = []
    count = grammar.places(open_decision)
    for number in range(count):
        legal = [n for n in table if grammar.is_legal(open_decision, number, remaining, inner, n)]
        value = rng.choice(legal)
        values.append(value)
        if number + 1 < count:  # several values: the factors of a tile
            remaining, inner = remaining // value, inner * value
    return values
