"""Supervised training of the language model: it predicts the decided tokens of demonstrations."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tlmd.language.vocabulary import PAD
from tlmd.model.decoder import Decoder

_IGNORED = -100


@dataclass(frozen=True)
class Demonstration:
    """One sentence that the model learns to write."""

    prompt: tuple[int, ...]
    """Token ids."""

    sentence: tuple[int, ...]
    """Token ids."""

    decided: tuple[bool, ...]
    """For each token of the sentence, whether it is decided. Only these tokens are trained."""

    weight: float = 1.0
    """How often it is drawn, relative to other demonstrations of its prompt."""


@dataclass(frozen=True)
class TrainingPlan:
    """How long and how fast to train.

    The learning rate increases over the first 5 % of the steps and then falls to a tenth along a
    cosine.
    """

    steps: int = 1000
    prompts_per_step: int = 2

    per_prompt: int = 24
    """Sentences per prompt and step. They share one pass over the prompt."""

    learning_rate: float = 1e-3
    weight_decay: float = 0.01

    clip: float = 1.0
    """Largest norm of the gradient."""

    seed: int = 0

    decay: bool = True
    """False: the learning rate stays constant after the start, so that training can stop early."""


class Trainer:
    """Trains a model in place."""

    def __init__(self, model: Any, plan: TrainingPlan) -> None:
        self._model = model
        self._plan = plan
        self._decoder = Decoder(model)

    def fit(
        self,
        demonstrations: Sequence[Demonstration],
        on_step: Callable[[int, float], bool] | None = None,
    ) -> list[float]:
        """Train, and return the loss of each step in nats per decided token.

        `on_step(step, loss)` is called after each step; if it returns False, training ends.
        """
        plan = self._plan
        groups = _by_prompt(demonstrations)
        prompts = list(groups)
        rng = random.Random(plan.seed)
        optimiser = torch.optim.AdamW(
            self._model.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay
        )
        losses: list[float] = []
        self._model.train()
        for step in range(plan.steps if prompts else 0):
            for parameters in optimiser.param_groups:
                parameters["lr"] = _learning_rate(plan, step)
            chosen = rng.choices(prompts, k=plan.prompts_per_step)
            batches = [_drawn(rng, groups[p], plan.per_prompt) for p in chosen]
            losses.append(self._step(batches, optimiser))
            if on_step is not None and not on_step(step, losses[-1]):
                break
        self._model.eval()
        return losses

    @torch.no_grad()
    def evaluate(self, demonstrations: Sequence[Demonstration]) -> float:
        """Mean loss over all decided tokens, in nats per token."""
        groups = _by_prompt(demonstrations)
        total, count = 0.0, 0
        for group in groups.values():
            loss, decided = self._loss(group)
            total += float(loss)
            count += decided
        return total / max(count, 1)

    def _step(self, batches: list[list[Demonstration]], optimiser: torch.optim.Optimizer) -> float:
        optimiser.zero_grad(set_to_none=True)
        total, count = 0.0, 0
        for batch in batches:
            loss, decided = self._loss(batch)
            torch.autograd.backward(loss / max(decided, 1) / len(batches))
            total += float(loss.detach())
            count += decided
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._plan.clip)
        optimiser.step()
        return total / max(count, 1)

    def _loss(self, batch: Sequence[Demonstration]) -> tuple[Tensor, int]:
        """The sum of the cross entropy over the decided tokens, and the number of these tokens."""
        logits, targets = predictions(self._decoder, batch)
        return functional.cross_entropy(logits, targets, reduction="sum"), len(targets)


def predictions(decoder: Decoder, batch: Sequence[Demonstration]) -> tuple[Tensor, Tensor]:
    """The network's predictions of the decided tokens, for sentences that share one prompt.

    Returns the unmasked scores of all words ``[decided, words]`` and the decided tokens
    ``[decided]``, sentence after sentence. The input before each token is the demonstration.
    """
    longest = max(len(d.sentence) for d in batch)
    tokens = torch.full((len(batch), longest), PAD)
    targets = torch.full((len(batch), longest), _IGNORED)
    for row, d in enumerate(batch):
        sentence = torch.tensor(d.sentence)
        tokens[row, : len(sentence)] = sentence
        decided = torch.tensor(d.decided)
        targets[row, : len(sentence)] = torch.where(decided, sentence, _IGNORED)
    prompt = decoder.prompt(torch.tensor(batch[0].prompt))
    hidden = decoder.sentences(prompt, tokens)
    # Each position predicts the next token. Only positions before a decided token need logits.
    targets = targets.to(decoder.device)
    is_decided = targets[:, 1:] != _IGNORED
    return decoder.logits(hidden[:, :-1][is_decided]), targets[:, 1:][is_decided]


def _drawn(rng: random.Random, group: Sequence[Demonstration], count: int) -> list[Demonstration]:
    weights = [d.weight for d in group]
    return rng.choices(group, weights, k=min(count, len(group)))


def _by_prompt(
    demonstrations: Sequence[Demonstration],
) -> dict[tuple[int, ...], list[Demonstration]]:
    groups: dict[tuple[int, ...], list[Demonstration]] = defaultdict(list)
    for demonstration in demonstrations:
        groups[demonstration.prompt].append(demonstration)
    return groups


def _learning_rate(plan: TrainingPlan, step: int) -> float:
    warm_up = max(1, plan.steps // 20)
    if step < warm_up:
        return plan.learning_rate * (step + 1) / warm_up
    if not plan.decay:
        return plan.learning_rate
    progress = (step - warm_up) / max(1, plan.steps - warm_up)
    return plan.learning_rate * (0.55 + 0.45 * math.cos(math.pi * progress))
