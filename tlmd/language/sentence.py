"""Sentences: the decisions of a candidate as tokens at fixed positions, and back.

``quality sketch (header values)*``: per slot a header (kind, iterator, extent, arity) directly
before its values. All candidates of one sketch have the same tokens at the same positions except
where something is decided, so a group of samples is a rectangle.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tlmd.language import grammar
from tlmd.language.numbers import free, parse_fixed
from tlmd.language.vocabulary import IDS, MAX_BLOCKS, MAX_ITERATORS, QUALITIES, WORDS, ids
from tlmd.types import Candidate, Sketch, Slot, SlotKind

# Lower bounds of best / seconds for the qualities 1, 2, ...; quality 0 is a failure.
_QUALITY_BOUNDS = (0.0, 0.12, 0.25, 0.4, 0.6, 0.8, 0.95)
ANY_QUALITY = "quality:any"
BEST_QUALITY = f"quality:{QUALITIES - 1}"


@dataclass(frozen=True)
class Place:
    """Where one slot stands in the sentence: its header, and the first position of its values."""

    slot: Slot
    header: tuple[int, ...]
    start: int
    count: int
    width: int


@dataclass(frozen=True)
class Layout:
    """The fixed positions of all sentences of one sketch; ``length`` is in tokens."""

    sketch: int
    places: tuple[Place, ...]
    length: int


def quality_word(best: float, seconds: float) -> str:
    """The quality token of a time in seconds, given the best one known for its task."""
    if not math.isfinite(seconds) or seconds <= 0:
        return "quality:0"
    share = best / seconds
    return f"quality:{sum(share >= bound for bound in _QUALITY_BOUNDS)}"


@functools.lru_cache(maxsize=4096)
def layout(sketch: Sketch) -> Layout:
    """The positions of a sketch's slots; the sentence starts with quality and sketch."""
    at, places, block = 2, [], None
    for slot in sketch.slots:
        header = _header(slot, slot.block != block)
        block = slot.block
        count, width = grammar.places(slot), grammar.values_of(slot).codes.shape[1]
        places.append(Place(slot, tuple(ids(header)), at + len(header), count, width))
        at += len(header) + count * width
    return Layout(sketch.index, tuple(places), at)


def _header(slot: Slot, new_block: bool) -> list[str]:
    if slot.kind is SlotKind.CATEGORY:
        return ["choose"]
    if slot.kind is SlotKind.PARALLEL:
        return ["parallel"]
    block = f"block:{max(-1, min(slot.block, MAX_BLOCKS - 1))}"
    if slot.kind is SlotKind.LOCATION:
        return ["locate", block]
    iterator = f"it:{min(slot.iterator, MAX_ITERATORS - 1)}"
    words = [f"{slot.kind.value}:{slot.arity}", iterator, *free(slot.extent)]
    return [block, *words] if new_block else words


def encode(sketch: Sketch, candidate: Candidate, quality: str = ANY_QUALITY) -> list[int]:
    """Token ids of a candidate's sentence (without the prompt).

    Raises `ValueError` for a decision that the space cannot produce.
    """
    tokens = [IDS[quality], IDS[f"sketch:{sketch.index}"]]
    places = layout(sketch).places
    for place, decision in zip(places, candidate.decisions, strict=True):
        values = grammar.values_of(place.slot)
        tokens += place.header
        for value in grammar.to_values(place.slot, decision):
            tokens += values.codes[values.index(value)].tolist()
    return tokens


def decode(sketches: tuple[Sketch, ...], tokens: list[int], task_id: str) -> Candidate:
    """The candidate that `encode` wrote as `tokens`; raises `ValueError` for anything else."""
    kind, _, index = WORDS[tokens[1]].partition(":")
    if kind != "sketch" or int(index) >= len(sketches):
        raise ValueError(f"not a sketch of this task: {WORDS[tokens[1]]}")
    form = layout(sketches[int(index)])
    if len(tokens) != form.length:
        raise ValueError(f"{len(tokens)} tokens where the sketch has {form.length}")
    decisions = []
    for place in form.places:
        first = place.start - len(place.header)
        if tuple(tokens[first : place.start]) != place.header:
            raise ValueError(f"wrong header at position {first}")
        ends = range(place.start, place.start + place.count * place.width, place.width)
        values = [_value(place.slot, tokens[at : at + place.width]) for at in ends]
        decisions.append(grammar.to_decision(place.slot, values))
    return Candidate(task_id, form.sketch, tuple(decisions))


def choice_mask(sketch: Sketch) -> list[bool]:
    """Which tokens of a sentence are decided: the sketch and the values, not the headers."""
    form = layout(sketch)
    mask = [False] * form.length
    mask[1] = True
    for place in form.places:
        for at in range(place.start, place.start + place.count * place.width):
            mask[at] = True
    return mask


def _value(slot: Slot, tokens: list[int]) -> int:
    words = [WORDS[t] for t in tokens]
    if slot.kind is not SlotKind.LOCATION:
        return parse_fixed(words)
    kind, _, place = words[0].partition(":")
    if kind != "at":
        raise ValueError(f"not a location: {words[0]}")
    return {"inline": grammar.INLINE, "root": grammar.ROOT}.get(place) or (
        int(place) if place.isdigit() else grammar.ROOT
    )
