"""Sentences: the decisions of a candidate as tokens at fixed positions, and back.

A sentence is ``quality sketch (header values)*``: each decision has a header (kind, iterator,
extent, arity) directly before its values. The sentences of all candidates of one sketch differ only
in the decided tokens, so a group of sentences is a matrix of tokens.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tlmd.data.computation import DecisionKind, OpenDecision, Sketch
from tlmd.data.types import Candidate
from tlmd.language import grammar
from tlmd.language.numbers import free, parse_fixed
from tlmd.language.vocabulary import IDS, MAX_BLOCKS, MAX_ITERATORS, QUALITIES, WORDS, ids

# Lower bounds of best / seconds for the qualities 1, 2, ... Quality 0 is a failure.
_QUALITY_BOUNDS = (0.0, 0.12, 0.25, 0.4, 0.6, 0.8, 0.95)
ANY_QUALITY = "quality:any"
BEST_QUALITY = f"quality:{QUALITIES - 1}"
WORST_QUALITY = "quality:1"


@dataclass(frozen=True)
class DecisionSpan:
    """The position of one decision in the sentence."""

    open_decision: OpenDecision

    header: tuple[int, ...]
    """Token ids of the header."""

    start: int
    """Position of the first value, directly after the header."""

    count: int
    """Number of values."""

    width: int
    """Tokens per value."""


@dataclass(frozen=True)
class Layout:
    """The fixed positions of all sentences of one sketch; ``length`` is in tokens."""

    sketch: int
    spans: tuple[DecisionSpan, ...]
    length: int


def quality_word(best: float, seconds: float) -> str:
    """The quality token of a time in seconds; `best` is the best known time of its task."""
    if not math.isfinite(seconds) or seconds <= 0:
        return "quality:0"
    share = best / seconds
    return f"quality:{sum(share >= bound for bound in _QUALITY_BOUNDS)}"


@functools.lru_cache(maxsize=4096)
def layout(sketch: Sketch) -> Layout:
    """The positions of a sketch's decisions in a sentence."""
    at, spans, block = 2, [], None  # after the tokens of quality and sketch
    for open_decision in sketch.open_decisions:
        header = _header(open_decision, open_decision.block != block)
        block = open_decision.block
        count, width = (
            grammar.places(open_decision),
            grammar.values_of(open_decision).codes.shape[1],
        )
        spans.append(
            DecisionSpan(open_decision, tuple(ids(header)), at + len(header), count, width)
        )
        at += len(header) + count * width
    return Layout(sketch.index, tuple(spans), at)


def _header(open_decision: OpenDecision, new_block: bool) -> list[str]:
    if open_decision.kind is DecisionKind.CATEGORY:
        return ["choose"]
    if open_decision.kind is DecisionKind.PARALLEL:
        return ["parallel"]
    block = f"block:{max(-1, min(open_decision.block, MAX_BLOCKS - 1))}"
    if open_decision.kind is DecisionKind.LOCATION:
        return ["locate", block]
    iterator = f"it:{min(open_decision.iterator, MAX_ITERATORS - 1)}"
    words = [
        f"{open_decision.kind.value}:{open_decision.arity}",
        iterator,
        *free(open_decision.extent),
    ]
    return [block, *words] if new_block else words


def encode(sketch: Sketch, candidate: Candidate, quality: str = ANY_QUALITY) -> list[int]:
    """Token ids of a candidate's sentence, without the prompt.

    Raises `ValueError` for a decision that is not legal.
    """
    tokens = [IDS[quality], IDS[f"sketch:{sketch.index}"]]
    spans = layout(sketch).spans
    for span, decision in zip(spans, candidate.decisions, strict=True):
        values = grammar.values_of(span.open_decision)
        tokens += span.header
        for value in grammar.to_values(span.open_decision, decision):
            tokens += values.codes[values.index(value)].tolist()
    return tokens


def decode(sketches: tuple[Sketch, ...], tokens: list[int], task_id: str) -> Candidate:
    """The candidate that `encode` wrote as `tokens`. Raises `ValueError` for other tokens."""
    kind, _, index = WORDS[tokens[1]].partition(":")
    if kind != "sketch" or int(index) >= len(sketches):
        raise ValueError(f"not a sketch of this task: {WORDS[tokens[1]]}")
    form = layout(sketches[int(index)])
    if len(tokens) != form.length:
        raise ValueError(f"{len(tokens)} tokens; the sketch needs {form.length}")
    decisions = []
    for span in form.spans:
        first = span.start - len(span.header)
        if tuple(tokens[first : span.start]) != span.header:
            raise ValueError(f"wrong header at position {first}")
        starts = range(span.start, span.start + span.count * span.width, span.width)
        values = [_value(span.open_decision, tokens[at : at + span.width]) for at in starts]
        decisions.append(grammar.to_decision(span.open_decision, values))
    return Candidate(task_id, form.sketch, tuple(decisions))


def choice_mask(sketch: Sketch) -> list[bool]:
    """The decided tokens of a sentence: the sketch and all values."""
    form = layout(sketch)
    mask = [False] * form.length
    mask[1] = True
    for span in form.spans:
        for at in range(span.start, span.start + span.count * span.width):
            mask[at] = True
    return mask


def _value(open_decision: OpenDecision, tokens: list[int]) -> int:
    words = [WORDS[t] for t in tokens]
    if open_decision.kind is not DecisionKind.LOCATION:
        return parse_fixed(words)
    kind, _, location = words[0].partition(":")
    if kind != "at":
        raise ValueError(f"not a location: {words[0]}")
    return {"inline": grammar.INLINE, "root": grammar.ROOT}.get(location) or (
        int(location) if location.isdigit() else grammar.ROOT
    )
