"""From a candidate of a task to what is trained on: demonstrations, and questions for the gate."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from tlmd.language import grammar
from tlmd.language.prompt import prompt
from tlmd.language.sentence import choice_mask, encode, layout
from tlmd.language.vocabulary import IDS, MAX_SKETCHES
from tlmd.learn.gate import Question
from tlmd.model.network import POSITIONS
from tlmd.model.training import Demonstration
from tlmd.space.space import TaskSpace
from tlmd.types import Candidate, Sketch


@dataclass(frozen=True)
class Encoded:
    """A candidate in token ids, how good it is left open.

    ``words`` is the sentence without its first token, the quality; ``decided`` and ``allowed`` are
    those of `Demonstration` and `Question`.
    """

    prompt: tuple[int, ...]
    words: tuple[int, ...]
    decided: tuple[bool, ...]
    allowed: tuple[tuple[int, ...], ...]

    def demonstration(self, quality: str, weight: float = 1.0) -> Demonstration:
        """The candidate to imitate, said to be of this quality (a word such as ``quality:7``)."""
        return Demonstration(self.prompt, (IDS[quality], *self.words), self.decided, weight)

    def question(self, quality: str) -> Question:
        """The candidate to be examined on."""
        return Question(self.demonstration(quality), self.allowed)


class Encoder:
    """Encodes the candidates of one task; they share one prompt."""

    def __init__(self, space: TaskSpace) -> None:
        self._sketches = space.sketches
        self._prompt = tuple(prompt(space.computation, space.task.target, space.sketches))

    def encode(self, candidate: Candidate) -> Encoded | None:
        """The candidate's tokens; None for one that the language cannot say.

        So it is where its sketch no longer exists or has other slots now, and where prompt and
        sentence are longer than the network.
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
    """Per token of a value, slot after slot, the ids that its digit can have."""
    words: list[tuple[int, ...]] = []
    for place in layout(sketch).places:
        codes = grammar.values_of(place.slot).codes
        digits = [tuple(np.unique(column).tolist()) for column in codes.T]
        words += digits * place.count
    return tuple(words)
