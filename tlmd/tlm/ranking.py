"""How well a language model orders measured candidates of tasks, without sampling anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tlmd.language.sentence import BEST_QUALITY, WORST_QUALITY
from tlmd.tlm.decoder import Decoder
from tlmd.tlm.demonstration import TaskTensors
from tlmd.tlm.network import Gpt2

Floats = NDArray[np.floating[Any]]
_EQUAL = 1e-3  # a task whose speeds spread less shows nothing


@dataclass(frozen=True)
class Ranking:
    """Means over tasks; zeros without a task whose candidates differ.

    Example: ``Ranking(0.45, 0.38, 0.62, 0.48)``.
    """

    correlation: float
    """Rank correlation (Spearman) of the speed with log p relative to uniform sampling."""
    contrast: float
    """The same of log p for the best quality minus log p for the worst."""
    first: float
    """Speed of the candidate that it puts first, as a share of the task's best."""
    random: float
    """Mean speed of all candidates, as a share of the task's best."""

    def __str__(self) -> str:
        return (
            f"correlation {self.correlation:.3f}, of best minus worst {self.contrast:.3f}; "
            f"first {self.first:.3f} of the best (random {self.random:.3f})"
        )


@torch.no_grad()
def rank(model: Gpt2, tasks: Sequence[TaskTensors]) -> Ranking:
    """Judge `model` on these tasks, which it should not have been trained on."""
    decoder = Decoder(model)
    rows: list[tuple[float, float, float, float]] = []
    for task in tasks:
        shares = task.shares.numpy()
        if len(shares) < 2 or shares.std() < _EQUAL:
            continue
        prompt = decoder.prompt(task.prompt)
        best = task.log_probabilities(decoder, BEST_QUALITY, prompt).cpu()
        worst = task.log_probabilities(decoder, WORST_QUALITY, prompt).cpu()
        scores = (best - task.log_uniform()).numpy()
        first = float(shares[int(scores.argmax())])
        contrast = spearman((best - worst).numpy(), shares)
        rows.append((spearman(scores, shares), contrast, first, float(shares.mean())))
    if not rows:
        return Ranking(0.0, 0.0, 0.0, 0.0)
    return Ranking(*(fmean(column) for column in zip(*rows, strict=True)))


def spearman(left: Floats, right: Floats) -> float:
    """Rank correlation of two vectors ``[n]``; 0 if one is constant."""
    if min(np.ptp(left), np.ptp(right)) == 0:
        return 0.0
    return float(np.corrcoef(ranks(left), ranks(right))[0, 1])


def ranks(values: Floats) -> Floats:
    """The ranks ``[n]`` of values ``[n]``; equal values have the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[which]
    return ranks
