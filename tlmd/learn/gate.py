"""The gate: decides, on held-out candidates, whether a new checkpoint may replace the old."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tlmd.data.config import RegistryConfig
from tlmd.language.sentence import BEST_QUALITY
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.checkpoint_registry import GateResult
from tlmd.tlm.decoder import Decoder
from tlmd.tlm.demonstration import TaskDemonstrations, TaskTensors
from tlmd.tlm.network import Gpt2
from tlmd.tlm.training import DIFFERENT, TrainingPlan


@dataclass(frozen=True)
class HeldOut:
    """Candidates of one task that were never trained on, and others to compare them with.

    Example: ``HeldOut(task, 2)``.
    """

    task: TaskDemonstrations
    count: int
    """Number of leading sentences that are held out."""


@dataclass(frozen=True)
class EvalResult:
    """The quality of a network on the held-out candidates.

    Example: ``EvalResult(finite=True, nats=1.31, order=0.71)``.
    """

    finite: bool
    """All weights are finite."""
    nats: float
    """Mean loss of the good ones, in nats per place with a choice; 0 if there are none."""
    order: float
    """Share of pairs, one of them held out, that it puts in the right order; 0.5 is chance."""


@torch.no_grad()
def evaluate(model: Gpt2, examples: Sequence[HeldOut]) -> EvalResult:
    """Evaluate a network.

    A model with weights that are not finite has an infinite loss.
    """
    if not all(bool(torch.isfinite(weight).all()) for weight in model.state_dict().values()):
        return EvalResult(False, math.inf, 0.0)
    decoder = Decoder(model)
    nats = places = right = pairs = 0.0
    for example in examples:
        task = TaskTensors(example.task)
        log_probs = task.log_probabilities(decoder, BEST_QUALITY).cpu()
        held_out = torch.arange(len(task)) < example.count
        good = held_out & (task.shares >= TrainingPlan.good)
        nats -= float(log_probs[good].sum())
        places += float(torch.bincount(task.rows, minlength=len(task))[good].sum())
        scores = log_probs - task.log_uniform()
        apart = task.shares[:, None] - task.shares[None, :]
        asked = (apart > DIFFERENT) & (held_out[:, None] | held_out[None, :])
        right += float((asked & (scores[:, None] > scores[None, :])).sum())
        pairs += float(asked.sum())
    return EvalResult(True, nats / max(places, 1), right / pairs if pairs else 0.5)


def regression(
    new: EvalResult, old: EvalResult, tolerated: RegistryConfig | None = None, steps: int = 1
) -> str:
    """Why `new` must not replace `old`, in one line; empty where it may.

    `steps` are the optimiser steps that `new` was trained for.
    """
    tolerated = tolerated or RegistryConfig()
    if not new.finite:
        return "some weights are not finite"
    if steps < 1:
        return "no training step was taken"
    # Written as `not <=`, so that a loss that is NaN is refused.
    if not new.nats <= old.nats + tolerated.tolerated_nats:
        return f"held-out loss {new.nats:.2f} against {old.nats:.2f} nats"
    if not new.order >= old.order - tolerated.tolerated_order:
        return f"{new.order:.1%} of held-out pairs in the right order against {old.order:.1%}"
    return ""


def judge(
    new: Checkpoint,
    rivals: Sequence[Checkpoint],
    examples: Sequence[HeldOut],
    tolerated: RegistryConfig | None = None,
) -> GateResult:
    """Compare a new checkpoint with the best versions so far, all on the same held-out candidates.

    Were it compared with the last one only, versions could get worse by what is tolerated, again
    and again. Without held-out candidates nothing is compared, and the best stay the best.
    """
    results = {rival.version: evaluate(rival.model, examples) for rival in rivals}
    steps, compared = int(new.notes.get("steps", 0)), bool(examples)
    result = evaluate(new.model, examples)
    return ranked(new.version, result, results, tolerated, steps, compared)


def ranked(
    version: int,
    new: EvalResult,
    rivals: dict[int, EvalResult],
    tolerated: RegistryConfig | None = None,
    steps: int = 1,
    compared: bool = True,
) -> GateResult:
    """Whether `version` may come into force after the `rivals`, and which are the best then.

    The best are the one with the lowest loss and the one with most pairs in order; of equal ones
    the newest.
    """
    nats, order = (min(r.nats for r in rivals.values()), max(r.order for r in rivals.values()))
    reason = regression(new, EvalResult(True, nats, order), tolerated, steps)
    everyone = rivals if reason or not compared else rivals | {version: new}
    lowest = min(everyone, key=lambda v: (everyone[v].nats, -v))
    ordered = max(everyone, key=lambda v: (everyone[v].order, v))
    return GateResult(reason, tuple(sorted({lowest, ordered})))
