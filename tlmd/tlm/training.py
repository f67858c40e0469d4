"""Training of the language model on the differences between measured candidates of a task.

Likelihood alone is mostly spent on the entropy of the data, which is largely random. So the model
learns which of two candidates of a task is faster, by their log probabilities relative to uniform
sampling (direct preference optimisation, Rafailov et al., 2023, with the uniform distribution over
legal words as the reference), and beside this the likelihood of the good ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tlmd.language.sentence import BEST_QUALITY, WORST_QUALITY
from tlmd.tlm.decoder import Decoder
from tlmd.tlm.demonstration import TaskDemonstrations, TaskTensors
from tlmd.tlm.network import Gpt2
from tlmd.tlm.task_batch import TaskBatch

_BETAS = (0.9, 0.98)
_WARM_UP = 0.05  # this share of the training
_WORST_ONES = 6  # sentences of a task that are shown at the worst quality in each step
DIFFERENT = 0.05  # speeds that differ by less, as shares of the best, are not compared


@dataclass(frozen=True)
class TrainingPlan:
    """How long and how fast to train.

    The learning rate increases over the first 5 % of the training and then falls to a twenty-fifth
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
    """Candidates of a smaller share are learnt by likelihood as sentences of the worst quality."""

    likelihood: float = 0.02
    """Weight of the likelihood of a sentence, relative to the differences. Without it, the model
    would also take probability from the good ones: it would rank well and write badly."""

    differences: float = 1.0
    """Weight of the differences; 0: likelihood alone, as in the paper."""

    worst: float = 0.0
    """Weight of what is shown at the worst quality; 0: nothing is, which writes better programs
    (`benchmarks/learning/learning.md`)."""

    seed: int = 0

    decay: bool = True
    """False: the learning rate stays constant after the start, so that training can stop early."""


Progress = Callable[[int], float]
"""Given the number of a step, from 1, the share of the training that is done with it, 0 to 1.

Training ends before a step for which this is more."""


def until(seconds: float, clock: Callable[[], float]) -> Progress:
    """Train for so long by `clock`, however long a step takes."""
    begin = clock()
    return lambda _step: (clock() - begin) / seconds


class Trainer:
    """Trains a model in place."""

    def __init__(self, model: Gpt2, plan: TrainingPlan) -> None:
        self._model = model
        self._plan = plan
        self._decoder = Decoder(model)

    def fit(
        self,
        tasks: Sequence[TaskDemonstrations],
        on_step: Callable[[int, float], bool] | None = None,
        progress: Progress | None = None,
    ) -> list[float]:
        """Train, and return the loss of each step.

        Each pass shows every task once, in random order. `on_step(step, loss)` is called after
        each step; if it returns False, training ends. `progress` replaces the plan's steps.
        """
        plan = self._plan
        progress = progress or (lambda step: step / plan.steps if plan.steps else math.inf)
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
        while usable and (done := progress(len(losses) + 1)) <= 1:
            for parameters in optimiser.param_groups:
                parameters["lr"] = _learning_rate(plan, done)
            while len(order) < plan.tasks_per_step:
                order += rng.sample(range(len(usable)), len(usable))
            chosen, order = order[: plan.tasks_per_step], order[plan.tasks_per_step :]
            tensors |= {i: TaskTensors(usable[i]) for i in chosen if i not in tensors}
            batch = [_drawn(tensors[i], plan.per_task, generator) for i in chosen]
            losses.append(self._step(batch, optimiser))
            if on_step is not None and not on_step(len(losses) - 1, losses[-1]):
                break
        self._model.eval()
        return losses

    def _step(self, batch: list[TaskTensors], optimiser: torch.optim.Optimizer) -> float:
        optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for loss in self._losses(batch):
            torch.autograd.backward(loss)
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._plan.clip)
        optimiser.step()
        return total

    def _losses(self, batch: list[TaskTensors]) -> Iterator[Tensor]:
        """Parts of the mean loss: of each task alone, or of all in one pass on a card."""
        if self._decoder.device.type == "cpu":
            for task in batch:
                yield task_loss(self._decoder, task, self._plan) / len(batch)
        else:
            yield batch_loss(self._decoder, batch, self._plan).mean()


def task_loss(decoder: Decoder, task: TaskTensors, plan: TrainingPlan) -> Tensor:
    """The loss of one task's sentences, on the CPU: differences of all pairs, and likelihood.

    At the best quality the fast ones are likely; at the worst quality, which a few of the sentences
    show, the slow ones.
    """
    prompt = decoder.prompt(task.prompt)

    def loss(task: TaskTensors, quality: str) -> Tensor:
        log_probs = task.log_probabilities(decoder, quality, prompt)
        sentences = _Sentences(
            task.log_uniform(), task.shares, task.weights, torch.ones(len(task)) > 0
        )
        return _quality_loss(log_probs, sentences, quality, plan)

    best = loss(task, BEST_QUALITY)
    return best + plan.worst * loss(_few(task), WORST_QUALITY) if plan.worst else best


def batch_loss(decoder: Decoder, tasks: Sequence[TaskTensors], plan: TrainingPlan) -> Tensor:
    """The same of several tasks ``[tasks]``, on any device, in one pass for each quality."""

    def loss(tasks: Sequence[TaskTensors], quality: str) -> Tensor:
        batch = TaskBatch(tasks, decoder.device)
        log_probs = batch.log_probabilities(decoder, quality)
        sentences = _Sentences(batch.log_uniform, batch.shares, batch.weights, batch.present)
        return _quality_loss(log_probs, sentences, quality, plan)

    best = loss(tasks, BEST_QUALITY)
    return best + plan.worst * loss([*map(_few, tasks)], WORST_QUALITY) if plan.worst else best


def _few(task: TaskTensors) -> TaskTensors:
    return task.choose(torch.arange(min(len(task), _WORST_ONES)))


class _Sentences(NamedTuple):
    """Properties of sentences, each ``[..., n]``; sentences that are not present have weight 0."""

    log_uniform: Tensor
    shares: Tensor
    weights: Tensor
    present: Tensor


def _quality_loss(
    log_probs: Tensor, sentences: _Sentences, quality: str, plan: TrainingPlan
) -> Tensor:
    """The loss ``[...]`` of sentences ``[..., n]`` at one quality, the best or the worst."""
    shares, weights = sentences.shares, sentences.weights
    scores = log_probs - sentences.log_uniform
    if quality == BEST_QUALITY:
        loss, likely = pair_loss(scores, shares, weights), shares >= plan.good
    else:
        loss, likely = pair_loss(-scores, shares, weights), shares < plan.bad
    likely = likely & sentences.present
    mean = log_probs.masked_fill(~likely, 0).sum(-1) / likely.sum(-1).clamp(min=1)
    return plan.differences * loss - plan.likelihood * mean


def pair_loss(scores: Tensor, shares: Tensor, weights: Tensor) -> Tensor:
    """Logistic loss of the order of all pairs ``[..., n]``; pairs that differ more weigh more."""
    apart = shares[..., :, None] - shares[..., None, :]
    weight = apart * (apart > DIFFERENT) * weights[..., :, None] * weights[..., None, :]
    wrong = functional.softplus(scores[..., None, :] - scores[..., :, None])
    return (weight * wrong).sum((-2, -1)) / weight.sum((-2, -1)).clamp(min=1e-6)


def _drawn(task: TaskTensors, count: int, generator: torch.Generator) -> TaskTensors:
    return task.choose(torch.randperm(len(task), generator=generator)[:count])


def _learning_rate(plan: TrainingPlan, done: float) -> float:
    if done < _WARM_UP:
        return plan.learning_rate * done / _WARM_UP
    if not plan.decay:
        return plan.learning_rate
    left = (done - _WARM_UP) / (1 - _WARM_UP)
    return plan.learning_rate * (0.52 + 0.48 * math.cos(math.pi * left))
