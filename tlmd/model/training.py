"""Training of the language model on the differences between measured candidates of a task.

Likelihood alone is mostly spent on the entropy of the data, which is largely random. So the model
learns which of two candidates of a task is faster, by their log probabilities relative to uniform
sampling (direct preference optimisation, Rafailov et al., 2023, with the uniform distribution over
legal words as the reference), and beside this the likelihood of the good ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tlmd.language.sentence import BEST_QUALITY, WORST_QUALITY
from tlmd.model.decoder import Decoder, PromptCache
from tlmd.model.demonstration import TaskDemonstrations, TaskTensors

_BETAS = (0.9, 0.98)
_PROBE = 8  # steps that show how long one takes
_WORST_ONES = 6  # sentences of a task that are shown at the worst quality in each step
DIFFERENT = 0.05  # speeds that differ by less, as shares of the best, are not compared


@dataclass(frozen=True)
class TrainingPlan:
    """How long and how fast to train.

    The learning rate increases over the first 5 % of the steps and then falls to a twenty-fifth
    along a cosine.
    """

    steps: int = 1000
    tasks_per_step: int = 8

    per_task: int = 16
    """Sentences of a task in one step. They share one pass over the prompt."""

    learning_rate: float = 1e-3
    weight_decay: float = 0.01

    clip: float = 1.0
    """Largest norm of the gradient."""

    good: float = 0.6
    """Sentences of at least this share of the best speed are learnt by likelihood."""

    bad: float = 0.25
    """Those of a smaller share are learnt by likelihood as sentences of the worst quality."""

    likelihood: float = 0.02
    """Weight of the likelihood of a sentence, relative to the differences. Without it, the model
    would also take probability from the good ones: it would rank well and write badly."""

    differences: float = 1.0
    """Weight of the differences; 0: likelihood alone, as in the paper."""

    worst: float = 0.0
    """Weight of what is shown at the worst quality; 0: nothing is, which writes better programs
    (`benchmarks/learning.md`)."""

    seed: int = 0

    decay: bool = True
    """False: the learning rate stays constant after the start, so that training can stop early."""


def steps_within(
    model: Any, tasks: Sequence[TaskDemonstrations], seconds: float, clock: Callable[[], float]
) -> int:
    """How many steps of training take so long by `clock`; does some that change almost nothing."""
    begin = clock()
    Trainer(model, TrainingPlan(steps=_PROBE, learning_rate=1e-6)).fit(tasks)
    return max(1, round(seconds / (clock() - begin) * _PROBE))


class Trainer:
    """Trains a model in place."""

    def __init__(self, model: Any, plan: TrainingPlan) -> None:
        self._model = model
        self._plan = plan
        self._decoder = Decoder(model)

    def fit(
        self,
        tasks: Sequence[TaskDemonstrations],
        on_step: Callable[[int, float], bool] | None = None,
    ) -> list[float]:
        """Train, and return the loss of each step.

        Each pass shows every task once, in random order. `on_step(step, loss)` is called after
        each step; if it returns False, training ends.
        """
        plan = self._plan
        usable = [task for task in tasks if task.demonstrations]
        tensors: dict[int, TaskTensors] = {}
        rng = random.Random(plan.seed)
        generator = torch.Generator().manual_seed(plan.seed)
        optimiser = torch.optim.AdamW(
            self._model.parameters(),
            lr=plan.learning_rate,
            weight_decay=plan.weight_decay,
            betas=_BETAS,
        )
        losses: list[float] = []
        order: list[int] = []
        self._model.train()
        for step in range(plan.steps if usable else 0):
            for parameters in optimiser.param_groups:
                parameters["lr"] = _learning_rate(plan, step)
            while len(order) < plan.tasks_per_step:
                order += rng.sample(range(len(usable)), len(usable))
            chosen, order = order[: plan.tasks_per_step], order[plan.tasks_per_step :]
            tensors |= {i: TaskTensors(usable[i]) for i in chosen if i not in tensors}
            batch = [_drawn(tensors[i], plan.per_task, generator) for i in chosen]
            losses.append(self._step(batch, optimiser))
            if on_step is not None and not on_step(step, losses[-1]):
                break
        self._model.eval()
        return losses

    def _step(self, batch: list[TaskTensors], optimiser: torch.optim.Optimizer) -> float:
        optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for task in batch:
            loss = task_loss(self._decoder, task, self._plan) / len(batch)
            torch.autograd.backward(loss)
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._plan.clip)
        optimiser.step()
        return total


def task_loss(decoder: Decoder, task: TaskTensors, plan: TrainingPlan) -> Tensor:
    """The loss of one task's sentences: differences of all pairs, and likelihood.

    At the best quality the fast ones are likely; at the worst quality, which a few of the sentences
    show, the slow ones.
    """
    prompt = decoder.prompt(task.prompt)
    best = _quality_loss(decoder, task, prompt, BEST_QUALITY, plan)
    if not plan.worst:
        return best
    few = task.choose(torch.arange(min(len(task), _WORST_ONES)))
    return best + plan.worst * _quality_loss(decoder, few, prompt, WORST_QUALITY, plan)


def _quality_loss(
    decoder: Decoder, task: TaskTensors, prompt: PromptCache, quality: str, plan: TrainingPlan
) -> Tensor:
    """The loss of the sentences at one quality, the best or the worst."""
    log_probs = task.log_probabilities(decoder, quality, prompt)
    scores = log_probs - task.log_uniform().to(log_probs.device)
    if quality == BEST_QUALITY:
        loss = plan.differences * pair_loss(scores, task.shares, task.weights)
        likely = task.shares >= plan.good
    else:
        loss = plan.differences * pair_loss(-scores, task.shares, task.weights)
        likely = task.shares < plan.bad
    likely = likely.to(log_probs.device)
    return loss - plan.likelihood * log_probs[likely].mean() if likely.any() else loss


def pair_loss(scores: Tensor, shares: Tensor, weights: Tensor) -> Tensor:
    """Logistic loss of the order of all pairs ``[n]``; pairs that differ more weigh more."""
    shares, weights = shares.to(scores.device), weights.to(scores.device)
    apart = shares[:, None] - shares[None, :]
    weight = apart * (apart > DIFFERENT) * weights[:, None] * weights[None, :]
    wrong = functional.softplus(scores[None, :] - scores[:, None])
    return (weight * wrong).sum() / weight.sum().clamp(min=1e-6)


def _drawn(task: TaskTensors, count: int, generator: torch.Generator) -> TaskTensors:
    return task.choose(torch.randperm(len(task), generator=generator)[:count])


def _learning_rate(plan: TrainingPlan, step: int) -> float:
    warm_up = max(1, plan.steps // 20)
    if step < warm_up:
        return plan.learning_rate * (step + 1) / warm_up
    if not plan.decay:
        return plan.learning_rate
    progress = (step - warm_up) / max(1, plan.steps - warm_up)
    return plan.learning_rate * (0.52 + 0.48 * math.cos(math.pi * progress))
