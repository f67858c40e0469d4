"""The ranker: a cross-task cost model that orders candidates of one task before the device does.

Gradient-boosted trees on per-store features (the cost model of Ansor and MetaSchedule), trained on
the tasks of all models, so that it already ranks a task it has never measured.
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
    """What was measured of a task: ``features [n, width]``, ``seconds [n]`` (infinite: failed).

    ``weights [n]`` say how much each counts (0 to 1); None: all alike.
    """

    features: Floats
    seconds: NDArray[np.float64]
    weights: Floats | None = None


class Ranker:
    """Scores programs of a task: higher is faster. A fresh one scores everything 0."""

    def __init__(self, booster: Any | None = None) -> None:
        self._booster = booster

    @property
    def trained(self) -> bool:
        return self._booster is not None

    def score(self, features: Floats) -> Floats:
        """Predicted share of the task's best speed ``[n]``, comparable within one task only."""
        if self._booster is None or not len(features):
            return np.zeros(len(features), np.float32)
        scores: Floats = self._booster.inplace_predict(features)
        return scores

    def fit(self, tasks: list[Measured], rounds: int = 300, seed: int = 0) -> Ranker:
        """A new ranker trained from scratch on `tasks`."""
        return Ranker(self._train(tasks, rounds, seed, None))

    def adapt(
        self,
        tasks: list[Measured],
        rounds: int = 20,
        seed: int = 0,
        stop: Callable[[], bool] | None = None,
    ) -> Ranker:
        """A new ranker that corrects this one by trees fitted to what was measured since.

        `stop` is asked after each round; when it says so, the trees there are must do.
        """
        return Ranker(self._train(tasks, rounds, seed, self._booster, stop))

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
        labels = np.concatenate([_labels(task.seconds) for task in usable])
        weights = np.concatenate([_weights(task) for task in usable])
        features = np.concatenate([task.features for task in usable])
        data = xgboost.DMatrix(features, labels, weight=weights)
        callbacks = [_Stop(stop)] if stop else []
        parameters = {**_PARAMETERS, "seed": seed}
        return xgboost.train(parameters, data, rounds, xgb_model=base, callbacks=callbacks)

    def to_bytes(self) -> bytes:
        """The trees in xgboost's own binary JSON; empty for a fresh ranker."""
        return bytes(self._booster.save_raw("ubj")) if self._booster else b""

    @staticmethod
    def from_bytes(data: bytes) -> Ranker:
        """The inverse of `to_bytes`."""
        if not data:
            return Ranker()
        booster = xgboost.Booster({"nthread": 1})
        booster.load_model(bytearray(data))
        return Ranker(booster)


class _Stop(xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """Ends the training after a round when asked to."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        super().__init__()
        self._stop = stop

    def after_iteration(self, _model: Any, _epoch: int, _log: Any) -> bool:
        return self._stop()


def _weights(task: Measured) -> Floats:
    return np.ones(len(task.seconds), np.float32) if task.weights is None else task.weights


def _labels(seconds: NDArray[np.float64]) -> Floats:
    """Speed as a share of the task's best; failures 0. (Ansor, OSDI'20, section 5.2.)

    How hard a task is cannot be ranked, and what matters is to tell the fast from the fastest: log
    speed would spend the trees on how slow the slow ones are.
    """
    shares: Floats = (seconds.min() / seconds).astype(np.float32)
    return shares
