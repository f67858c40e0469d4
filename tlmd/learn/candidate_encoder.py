"""Encodes candidates of a task as sentences that the language model is trained on."""

from __future__ import annotations

from tlmd.data.types import Candidate
from tlmd.language.legal_words import LegalLocations, legal_words
from tlmd.language.prompt import prompt
from tlmd.language.sentence import choice_mask, encode
from tlmd.language.vocabulary import MAX_SKETCHES
from tlmd.space.space import TaskSpace
from tlmd.tlm.demonstration import Demonstration
from tlmd.tlm.network import POSITIONS


class Encoder:
    """Encodes the candidates of one task; they share the prompt ``prompt``."""

    def __init__(self, space: TaskSpace, locations: LegalLocations | None = None) -> None:
        """`locations` are the legal ones; None: those of the space."""
        self._space = space
        self._locations = locations or space.locations
        self.prompt = tuple(prompt(space.computation, space.task.target, space.sketches))

    def encode(self, candidate: Candidate) -> Demonstration | None:
        """The candidate's sentence, with a share of 0; None for one the language cannot express.

        The language cannot express a candidate whose sketch is gone or has other open decisions
        now, and one whose prompt and sentence are longer than the network allows.
        """
        sketches = self._space.sketches
        if not 0 <= candidate.sketch < min(len(sketches), MAX_SKETCHES):
            return None
        sketch = sketches[candidate.sketch]
        try:
            tokens = tuple(encode(sketch, candidate))
            words = legal_words(sketches, candidate, self._locations)
        except (ValueError, IndexError):
            return None
        if len(self.prompt) + len(tokens) > POSITIONS:
            return None
        decided = (at for at, is_decided in enumerate(choice_mask(sketch)) if is_decided)
        open_places = [(at, w) for at, w in zip(decided, words, strict=True) if len(w) > 1]
        places, legal = (
            (tuple(part) for part in zip(*open_places, strict=True)) if open_places else ((), ())
        )
        return Demonstration(tokens, places, legal, share=0.0)
