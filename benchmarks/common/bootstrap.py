"""95 % intervals by bootstrap (Efron and Tibshirani, 1993)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_RESAMPLES = 1000


def interval(values: Sequence[float]) -> list[float]:
    """Interval of the mean over tasks."""
    return interval_over_seeds(np.array([values]))


def interval_of_ratio(above: Any, below: Any) -> list[float]:
    """Interval of the ratio of the means of ``above [tasks]`` and ``below [tasks]``."""
    return interval_over_seeds(above[None], below[None])


def interval_over_seeds(values: Any, below: Any = None) -> list[float]:
    """Interval of the mean of ``values [seeds, tasks]``, or of its ratio to that of ``below``.

    Seeds and tasks are drawn again, the same tasks for both.
    """
    rng, found = np.random.default_rng(0), []
    for _ in range(_RESAMPLES):
        tasks = rng.integers(0, values.shape[1], values.shape[1])
        mean = _drawn(values, tasks, rng)
        found.append(mean if below is None else mean / _drawn(below, tasks, rng))
    return _percentiles(found)


def geometric_mean_and_interval(ratios: Any) -> tuple[float, float, float]:
    """Geometric mean of positive ratios ``[tasks]`` or ``[seeds, tasks]``, and its interval."""
    logarithms = np.atleast_2d(np.log(ratios))
    low, high = np.exp(interval_over_seeds(logarithms))
    return float(np.exp(logarithms.mean())), round(float(low), 3), round(float(high), 3)


def mean_and_interval(values: Any) -> str:
    """The mean of ``values [tasks]`` or ``[seeds, tasks]`` and its interval, as text."""
    values = np.atleast_2d(np.array(values))
    low, high = interval_over_seeds(values)
    return f"{values.mean():.3f} [{low:.2f}, {high:.2f}]"


def _drawn(values: Any, tasks: Any, rng: Any) -> float:
    seeds = rng.integers(0, len(values), len(values))
    return float(values[seeds][:, tasks].mean())


def _percentiles(means: Any) -> list[float]:
    return [round(float(v), 3) for v in np.percentile(means, (2.5, 97.5))]
