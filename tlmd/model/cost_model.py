"""The cost model: it predicts which candidates of a task are fast, before they are measured.

Gradient-boosted trees on per-store features (the cost model of Ansor and MetaSchedule), trained on
the tasks of all models, so that it also works for a task without measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 8,
    "eta": 0.08,
    "min_child_weight": 2,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "nthread": 1,
    "verbosity": 0,
}


@dataclass(frozen=True)
class Measured:
    """The measured candidates of one task."""

    features: Floats
    """``[n, width]``."""

    seconds: NDArray[np.float64]
    """``[n]``; infinite for a failed candidate."""

    weights: Floats | None = None
    """Weights of the candidates in training, ``[n]``, from 0 to 1. None: all 1."""

    speedups: Floats | None = None
    """``[n]``: how much faster several cores ran them than one core would. None: all 1."""


class CostModel:
    """Scores programs of a task: higher is faster. Untrained, it gives all programs the score 0.

    The trees predict the speed on one core. Where several cores run the programs, the speedup of
    each program (``space.features.speedup``) is a factor. So trees that were trained on one core
    rank programs for several cores too.
    """

    def __init__(self, booster: Any | None = None) -> None:
        self._booster = booster

    @property
    def trained(self) -> bool:
        return self._booster is not None

    def score(self, features: Floats, speedups: Floats | None = None) -> Floats:
        """Predicted speed ``[n]``, as shares of the task's best. Compare scores of one task only.

        `speedups` ``[n]`` as in `Measured`.
        """
        if self._booster is None or not len(features):
            return np.zeros(len(features), np.float32)
        scores: Floats = self._booster.inplace_predict(features)
        return scores if speedups is None else scores * speedups

    def fit(self, tasks: list[Measured], rounds: int = 300, seed: int = 0) -> CostModel:
        """Return a new cost model that is trained from scratch on `tasks`."""
        return CostModel(self._train(tasks, rounds, seed, None))

    def adapt(
        self,
        tasks: list[Measured],
        rounds: int = 20,
        seed: int = 0,
        stop: Callable[[], bool] | None = None,
    ) -> CostModel:
        """Return a new cost model: this one and new trees, which are trained on `tasks`.

        `stop` is called after each tree; when it returns True, no more trees are added.
        """
        return CostModel(self._train(tasks, rounds, seed, self._booster, stop))

    def _train(
        self,
        tasks: list[Measured],
        rounds: int,
        seed: int,
        base: Any,
        stop: Callable[[], bool] | None = None,
    ) -> Any:
        usable = [task for task in tasks if np.isfinite(task.seconds).sum() >= 2]
        if not usable:
            return base
        labels = np.concatenate([_labels(_on_one_core(task)) for task in usable])
        weights = np.concatenate([_weights(task) for task in usable])
        features = np.concatenate([task.features for task in usable])
        data = xgboost.DMatrix(features, labels, weight=weights)
        callbacks = [_Stop(stop)] if stop else []
        parameters = {**_PARAMETERS, "seed": seed}
        return xgboost.train(parameters, data, rounds, xgb_model=base, callbacks=callbacks)

    def to_bytes(self) -> bytes:
        """The trees in xgboost's binary JSON; empty for an untrained cost model."""
        return bytes(self._booster.save_raw("ubj")) if self._booster else b""

    @staticmethod
    def from_bytes(data: bytes) -> CostModel:
        """The inverse of `to_bytes`."""
        if not data:
            return CostModel()
        booster = xgboost.Booster({"nthread": 1})
        booster.load_model(bytearray(data))
        return CostModel(booster)


class _Stop(xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """Ends the training after a tree when `stop` returns True."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        super().__init__()
        self._stop = stop

    def after_iteration(self, _model: Any, _epoch: int, _log: Any) -> bool:
        return self._stop()


def _weights(task: Measured) -> Floats:
    return np.ones(len(task.seconds), np.float32) if task.weights is None else task.weights


def _on_one_core(task: Measured) -> NDArray[np.float64]:
    return task.seconds if task.speedups is None else task.seconds * task.speedups


def _labels(seconds: NDArray[np.float64]) -> Floats:
    """Speed as a share of the task's best; 0 for failures. (Ansor, OSDI'20, section 5.2.)

    The share makes tasks of different size comparable. The logarithm of the speed would use many
    trees for differences between slow programs, but only the order of the fast ones matters.
    """
    shares: Floats = (seconds.min() / seconds).astype(np.float32)
    return shares
