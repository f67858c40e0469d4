"""The legal words at each decided token of a sentence, given the words before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tlmd.data.computation import DecisionKind, OpenDecision, Sketch
from tlmd.data.types import Candidate, Decision
from tlmd.language import grammar
from tlmd.language.vocabulary import IDS, MAX_SKETCHES

# (sketch, decisions before an open location decision) -> its legal locations.
LegalLocations = Callable[[int, tuple[Decision, ...]], tuple[int, ...]]
Words = tuple[int, ...]


def legal_words(
    sketches: tuple[Sketch, ...], candidate: Candidate, locations: LegalLocations
) -> tuple[Words, ...]:
    """The ids of the legal words for each decided token of the candidate's sentence, in its order.

    These are the words from which sampling chooses there. Raises `ValueError` for a decision that
    is not legal.
    """
    sketch, decisions = sketches[candidate.sketch], candidate.decisions
    words = [tuple(IDS[f"sketch:{i}"] for i in range(min(len(sketches), MAX_SKETCHES)))]
    for index, (open_decision, decision) in enumerate(
        zip(sketch.open_decisions, decisions, strict=True)
    ):
        legal_locations: tuple[int, ...] = ()
        if open_decision.kind is DecisionKind.LOCATION:
            legal_locations = locations(sketch.index, decisions[:index])
        words += _words(open_decision, decision, legal_locations)
    return tuple(words)


def _words(
    open_decision: OpenDecision, decision: Decision, legal_locations: tuple[int, ...]
) -> list[Words]:
    """The legal words for each token of one decision."""
    table = grammar.values_of(open_decision)
    remaining, inner = open_decision.extent, 1
    words: list[Words] = []
    for number, value in enumerate(grammar.to_values(open_decision, decision)):
        if open_decision.kind is DecisionKind.LOCATION:
            alive = np.isin(table.values, legal_locations)
        else:
            alive = grammar.legal(open_decision, number, np.array([remaining]), np.array([inner]))[
                0
            ]
        row = table.index(value)
        if not alive[row]:
            raise ValueError(f"{value} is not legal here")
        for column in table.codes.T:
            words.append(tuple(np.unique(column[alive]).tolist()))
            alive = alive & (column == column[row])
        if open_decision.kind in (DecisionKind.TILE, DecisionKind.PARTITION):
            remaining, inner = remaining // value, inner * value
    return words
