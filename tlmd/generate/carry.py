"""Candidates of similar tasks, as candidates of a task: the first ones that are worth a try.

A similar task is an older revision of the task, the same task on another CPU, or the same operators
with other extents. As TVM's TopHub and "transfer tuning" do, its decisions are taken over
("Learning to Optimize Tensor Programs", NeurIPS'18, section 4).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence

from tlmd.data.computation import DecisionKind, OpenDecision, Sketch
from tlmd.data.types import Candidate, Decision
from tlmd.language import grammar
from tlmd.space.importing import is_legal
from tlmd.space.space import TaskSpace

_FACTORED = (DecisionKind.TILE, DecisionKind.PARTITION)
_INNERMOST = 2.0
"""Weight of the innermost factor of a tile: it mostly is the vector."""


def carried_over(space: TaskSpace, similar: Iterable[Candidate]) -> list[Candidate]:
    """The candidates of `space` with the decisions of `similar` ones, which are of other spaces.

    A candidate fits a sketch with as many decisions of the same kinds. One in which all of its
    decisions are legal is tried first, and among these the one with the same index, since revisions
    of a program mostly keep their order. Decisions that are not legal, because extents differ,
    become the nearest legal ones. A candidate that fits no sketch is left out. The others are
    built, timed and checked like all candidates.
    """
    carried = {}
    for one in similar:
        if (fitted := _fitted(space, one)) is not None:
            carried[fitted.id] = fitted
    return list(carried.values())


def _fitted(space: TaskSpace, one: Candidate) -> Candidate | None:
    order = sorted(space.sketches, key=lambda sketch: sketch.index != one.sketch)
    fitting = [sketch for sketch in order if _has_kinds_of(sketch, one.decisions)]
    for sketch in fitting:
        if all(map(is_legal, sketch.open_decisions, one.decisions)):
            return Candidate(space.task.id, sketch.index, one.decisions)
    for sketch in fitting:
        decisions = _nearest(space, sketch, one.decisions)
        if decisions is not None and sketch.allows(decisions):
            return Candidate(space.task.id, sketch.index, decisions)
    return None


def _has_kinds_of(sketch: Sketch, decisions: Sequence[Decision]) -> bool:
    pairs = zip(sketch.open_decisions, decisions, strict=False)
    return len(sketch.open_decisions) == len(decisions) and all(
        len(decision) == (one.arity if one.kind in _FACTORED else 1) for one, decision in pairs
    )


def _nearest(
    space: TaskSpace, sketch: Sketch, decisions: Sequence[Decision]
) -> tuple[Decision, ...] | None:
    """Legal decisions that are as near to `decisions` as the extents allow; None: there is none."""
    near: list[Decision] = []
    for one, old in zip(sketch.open_decisions, decisions, strict=True):
        if one.kind in _FACTORED:
            new = _nearest_factors(one, old)
        elif one.kind is DecisionKind.CATEGORY:
            new = (min(old[0], len(one.options) - 1),)
        else:
            location = one.kind is DecisionKind.LOCATION
            legal = space.quick_locations(sketch.index, tuple(near)) if location else one.options
            new = _nearest_of(legal, old[0])
        if new is None:
            return None
        near.append(new)
    return tuple(near)


def _nearest_of(values: Sequence[int], old: int) -> Decision | None:
    return (min(values, key=lambda value: abs(value - old)),) if values else None


@functools.lru_cache(maxsize=4096)
def _nearest_factors(one: OpenDecision, old: Decision) -> Decision | None:
    if not grammar.is_open(one):
        return grammar.to_decision(one, [])
    weights = [1.0] * (one.arity - 2) + [_INNERMOST]

    def distance(factors: Decision) -> float:
        pairs = zip(weights, factors[1:], old[1:], strict=True)
        return sum(weight * abs(math.log(a / max(b, 1))) for weight, a, b in pairs)

    return min(_factorings(one), key=distance, default=None)


def _factorings(one: OpenDecision, values: tuple[int, ...] = ()) -> Iterator[Decision]:
    """All legal decisions of a tile that begin with `values`, the innermost first."""
    if len(values) == grammar.places(one):
        yield grammar.to_decision(one, list(values))
        return
    inner = math.prod(values)
    remaining = one.extent // inner
    for value in grammar.values_of(one).numbers:
        if grammar.is_legal(one, len(values), remaining, inner, value):
            yield from _factorings(one, (*values, value))
