"""The gate: may a new checkpoint replace the one in force? Asked of demonstrations held out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch.nn import functional

from tlmd.model.decoder import Decoder
from tlmd.model.training import Demonstration, predictions


@dataclass(frozen=True)
class Question:
    """A demonstration to be examined on.

    ``allowed`` lists per decided token, in the order of the sentence, the ids of all words that the
    grammar could ever put at this place: the task's sketches, or the digits that the values of the
    slot have there, whatever was decided before.

    Example: ``Question(Demonstration((1, 2), (700, 560, 3), (False, True, True)), ((560, 561),
    (3, 4)))``.
    """

    demonstration: Demonstration
    allowed: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Exam:
    """What a network knows: whether all its weights are finite; its mean loss in ``nats`` per
    decided token; and ``legal``, the share of decided tokens at which its first choice among all
    words, without a mask, is an allowed one (everything before it as demonstrated).

    Example: ``Exam(finite=True, nats=1.31, legal=0.97)``.
    """

    finite: bool
    nats: float
    legal: float


@dataclass(frozen=True)
class Tolerance:
    """How much worse than the checkpoint in force a new one may be."""

    nats: float = 0.1
    legal: float = 0.02


@torch.no_grad()
def examine(model: Any, questions: Sequence[Question]) -> Exam:
    """Examine a `GPT2LMHeadModel`; without questions 0 nats, all legal.

    Weights that are not finite are asked nothing: their loss is infinite.
    """
    if not all(bool(torch.isfinite(weight).all()) for weight in model.state_dict().values()):
        return Exam(False, math.inf, 0.0)
    decoder = Decoder(model)
    nats, legal, count = 0.0, 0, 0
    ordered = sorted(questions, key=_prompt)
    for _, group in groupby(ordered, key=_prompt):
        batch = list(group)
        scores, decided = predictions(decoder, [q.demonstration for q in batch])
        nats += float(functional.cross_entropy(scores, decided, reduction="sum"))
        allowed = [words for question in batch for words in question.allowed]
        first = scores.argmax(-1).tolist()
        legal += sum(word in words for word, words in zip(first, allowed, strict=True))
        count += len(first)
    return Exam(True, nats / count, legal / count) if count else Exam(True, 0.0, 1.0)


def judge(new: Exam, old: Exam, tolerance: Tolerance = Tolerance()) -> str:
    """Why `new` must not replace `old`, in one line; empty where it may."""
    if not new.finite:
        return "some weights are not finite"
    # Written so that a loss that is no number fails.
    if not new.nats <= old.nats + tolerance.nats:
        return f"held-out loss {new.nats:.2f} against {old.nats:.2f} nats"
    if not new.legal >= old.legal - tolerance.legal:
        return f"{new.legal:.1%} of the first choices legal against {old.legal:.1%}"
    return ""


def _prompt(question: Question) -> tuple[int, ...]:
    return question.demonstration.prompt
