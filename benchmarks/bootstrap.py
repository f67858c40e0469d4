"""95 % intervals by bootstrap (Efron and Tibshirani, 1993)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_RESAMPLES = 1000


def interval(values: Sequence[float]) -> list[float]:
    """Of the mean over tasks."""
    return _percentiles(np.array(values)[_resampled(len(values))].mean(1))


def interval_of_ratio(above: Any, below: Any) -> list[float]:
    """Of the mean of ``above [tasks]`` over that of ``below [tasks]``, for the same tasks."""
    drawn = _resampled(len(above))
    return _percentiles(above[drawn].mean(1) / below[drawn].mean(1))


def interval_over_seeds(values: Any, below: Any = None) -> list[float]:
    """Of the mean of ``values [seeds, tasks]``, or of its ratio to that of ``below``.

    Seeds and tasks are drawn again, the same tasks for both.
    """
    rng, found = np.random.default_rng(0), []
    for _ in range(_RESAMPLES):
        tasks = rng.integers(0, values.shape[1], values.shape[1])
        mean = _drawn(values, tasks, rng)
        found.append(mean if below is None else mean / _drawn(below, tasks, rng))
    return _percentiles(found)


def _drawn(values: Any, tasks: Any, rng: Any) -> float:
    seeds = rng.integers(0, len(values), len(values))
    return float(values[seeds][:, tasks].mean())


def _percentiles(means: Any) -> list[float]:
    return [round(float(v), 3) for v in np.percentile(means, (2.5, 97.5))]


def _resampled(count: int) -> Any:
    return np.random.default_rng(0).integers(0, count, (_RESAMPLES, count))
