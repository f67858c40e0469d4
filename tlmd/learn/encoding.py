"""Encodes candidates of a task as demonstrations, and as held-out examples for the gate."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from tlmd.computation import Sketch
from tlmd.language import grammar
from tlmd.language.prompt import prompt
from tlmd.language.sentence import choice_mask, encode, layout
from tlmd.language.vocabulary import IDS, MAX_SKETCHES
from tlmd.learn.gate import HeldOutExample
from tlmd.model.network import POSITIONS
from tlmd.model.training import Demonstration
from tlmd.space.space import TaskSpace
from tlmd.types import Candidate


@dataclass(frozen=True)
class Encoded:
    """A candidate in token ids, without its quality."""

    prompt: tuple[int, ...]
    words: tuple[int, ...]
    """The sentence without its first token, which says the quality."""
    decided: tuple[bool, ...]
    """As in `Demonstration`."""
    allowed: tuple[tuple[int, ...], ...]
    """As in `HeldOutExample`."""

    def demonstration(self, quality: str, weight: float = 1.0) -> Demonstration:
        """The candidate with its quality (a word such as ``quality:7``), for training."""
        return Demonstration(self.prompt, (IDS[quality], *self.words), self.decided, weight)

    def held_out_example(self, quality: str) -> HeldOutExample:
        """The candidate with its quality, for the gate."""
        return HeldOutExample(self.demonstration(quality), self.allowed)


class Encoder:
    """Encodes the candidates of one task; they share one prompt."""

    def __init__(self, space: TaskSpace) -> None:
        self._sketches = space.sketches
        self._prompt = tuple(prompt(space.computation, space.task.target, space.sketches))

    def encode(self, candidate: Candidate) -> Encoded | None:
        """The candidate's tokens; None for one that the language cannot express.

        That is the case where its sketch no longer exists or has other open decisions now, and
        where prompt and sentence are longer than the network allows.
        """
        if not 0 <= candidate.sketch < min(len(self._sketches), MAX_SKETCHES):
            return None
        sketch = self._sketches[candidate.sketch]
        try:
            words = tuple(encode(sketch, candidate)[1:])
        except (ValueError, IndexError):
            return None
        if len(self._prompt) + 1 + len(words) > POSITIONS:
            return None
        allowed = (_sketch_words(len(self._sketches)), *_value_words(sketch))
        return Encoded(self._prompt, words, _decided(sketch), allowed)


def _sketch_words(count: int) -> tuple[int, ...]:
    return tuple(IDS[f"sketch:{index}"] for index in range(min(count, MAX_SKETCHES)))


@functools.lru_cache(maxsize=4096)
def _decided(sketch: Sketch) -> tuple[bool, ...]:
    return tuple(choice_mask(sketch))


@functools.lru_cache(maxsize=4096)
def _value_words(sketch: Sketch) -> tuple[tuple[int, ...], ...]:
    """Per token of a value, decision after decision, the ids that its digit can have."""
    words: list[tuple[int, ...]] = []
    for place in layout(sketch).spans:
        codes = grammar.values_of(place.open_decision).codes
        digits = [tuple(np.unique(column).tolist()) for column in codes.T]
        words += digits * place.count
    return tuple(words)
