"""The gate: decides, on held-out demonstrations, whether a new checkpoint may replace the old."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch.nn import functional

from tlmd.config import RegistryConfig
from tlmd.model.decoder import Decoder
from tlmd.model.training import Demonstration, predictions


@dataclass(frozen=True)
class HeldOutExample:
    """A demonstration that is never trained on.

    Example: ``HeldOutExample(Demonstration((1, 2), (700, 560, 3), (False, True, True)),
    ((560, 561), (3, 4)))``.
    """

    demonstration: Demonstration
    allowed: tuple[tuple[int, ...], ...]
    """Per decided token, in the order of the sentence: the ids of all words that the grammar can
    ever allow at this place. These are the task's sketches, or the digits that the values of the
    open decision have there, for any earlier decisions."""


@dataclass(frozen=True)
class EvalResult:
    """What a network knows of the held-out examples.

    Example: ``EvalResult(finite=True, nats=1.31, legal=0.97)``.
    """

    finite: bool
    """All weights are finite."""
    nats: float
    """Mean loss in nats per decided token."""
    legal: float
    """Share of decided tokens at which the network's first choice, without a mask, is allowed."""


@torch.no_grad()
def evaluate(model: Any, examples: Sequence[HeldOutExample]) -> EvalResult:
    """Evaluate a `GPT2LMHeadModel`. Without examples: 0 nats, all legal.

    A model with weights that are not finite has an infinite loss.
    """
    if not all(bool(torch.isfinite(weight).all()) for weight in model.state_dict().values()):
        return EvalResult(False, math.inf, 0.0)
    decoder = Decoder(model)
    nats, legal, count = 0.0, 0, 0
    ordered = sorted(examples, key=_prompt)
    for _, group in groupby(ordered, key=_prompt):
        batch = list(group)
        scores, decided = predictions(decoder, [e.demonstration for e in batch])
        nats += float(functional.cross_entropy(scores, decided, reduction="sum"))
        allowed = [words for example in batch for words in example.allowed]
        first = scores.argmax(-1).tolist()
        legal += sum(word in words for word, words in zip(first, allowed, strict=True))
        count += len(first)
    return EvalResult(True, nats / count, legal / count) if count else EvalResult(True, 0.0, 1.0)


def regression(new: EvalResult, old: EvalResult, tolerated: RegistryConfig | None = None) -> str:
    """Why `new` is too much worse than `old`, in one line; empty where it is not."""
    tolerated = tolerated or RegistryConfig()
    if not new.finite:
        return "some weights are not finite"
    # Written as `not <=`, so that a loss that is NaN is refused.
    if not new.nats <= old.nats + tolerated.tolerated_nats:
        return f"held-out loss {new.nats:.2f} against {old.nats:.2f} nats"
    if not new.legal >= old.legal - tolerated.tolerated_legal:
        return f"{new.legal:.1%} of the first choices legal against {old.legal:.1%}"
    return ""


def _prompt(example: HeldOutExample) -> tuple[int, ...]:
    return example.demonstration.prompt
