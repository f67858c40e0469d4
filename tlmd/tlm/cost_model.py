"""The cost model: it predicts which candidates of a task are fast, before they are measured.

Gradient-boosted trees, trained on the tasks of all models, so that they also work for a task
without measurements. Some see the features of the program, one row per candidate that TVM has
applied (the cost model of Ansor and MetaSchedule). Others see the decisions alone, so that they can
choose among thousands of candidates which are worth applying. Both together order better than
either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import xgboost
from numpy.typing import NDArray

from tlmd.tlm import decision_features

Floats = NDArray[np.float32]
_PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 8,
    "eta": 0.08,
    "min_child_weight": 8,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "nthread": 1,
    "verbosity": 0,
}
_DECISIONS_SHARE = np.float32(2 / 3)  # of the score; more than half orders the bank a little better
_UBJSON = b"{"  # the first byte of a booster that was saved alone


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

    decisions: Floats | None = None
    """``[n, decision_features.WIDTH]``. None: the trees on decisions do not learn from the task."""


class CostModel:
    """Scores programs of a task: higher is faster. Untrained, it gives all programs the score 0.

    The trees predict the speed on one core. Where several cores run the programs, the speedup of
    each program (``space.features.speedup``) is a factor. So trees that were trained on one core
    rank programs for several cores too.
    """

    def __init__(self, program: Any | None = None, decisions: Any | None = None) -> None:
        self._program = program
        self._decisions = decisions

    @property
    def trained(self) -> bool:
        return self._program is not None

    @property
    def knows_decisions(self) -> bool:
        """Whether it can score candidates that were not applied."""
        return self._decisions is not None

    def score(
        self,
        features: Floats,
        speedups: Floats | None = None,
        decisions: Floats | None = None,
    ) -> Floats:
        """Predicted speed ``[n]``, as shares of the task's best. Compare scores of one task only.

        `features`, `speedups` and `decisions` as in `Measured`.
        """
        if self._program is None or not len(features):
            return np.zeros(len(features), np.float32)
        scores: Floats = self._program.inplace_predict(features)
        if decisions is not None and self._decisions is not None:
            by_decisions = self._decisions.inplace_predict(decisions)
            scores = (1 - _DECISIONS_SHARE) * scores + _DECISIONS_SHARE * by_decisions
        return scores if speedups is None else scores * speedups

    def score_decisions(self, decisions: Floats, speedups: Floats | None = None) -> Floats:
        """The same from the decisions alone, for candidates that were not applied."""
        if self._decisions is None or not len(decisions):
            return np.zeros(len(decisions), np.float32)
        scores: Floats = self._decisions.inplace_predict(decisions)
        return scores if speedups is None else scores * speedups

    def fit(self, tasks: list[Measured], rounds: int = 300, seed: int = 0) -> CostModel:
        """Return a new cost model that is trained from scratch on `tasks`."""
        return CostModel().adapt(tasks, rounds, seed)

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
        usable = [task for task in tasks if np.isfinite(task.seconds).sum() >= 2]
        described = [task for task in usable if task.decisions is not None]
        return CostModel(
            _more_trees(self._program, [t.features for t in usable], usable, rounds, seed, stop),
            _more_trees(
                self._decisions, [t.decisions for t in described], described, rounds, seed, stop
            ),
        )

    def to_bytes(self) -> bytes:
        """The trees in xgboost's binary JSON; empty for an untrained cost model."""
        if self._program is None:
            return b""
        trees = {"program": self._program, "decisions": self._decisions}
        packed: bytes = msgpack.packb(
            {name: bytes(t.save_raw("ubj")) if t is not None else b"" for name, t in trees.items()}
        )
        return packed

    @staticmethod
    def from_bytes(data: bytes) -> CostModel:
        """The inverse of `to_bytes`. A checkpoint of tlmd 0.1 has the trees on programs alone.

        Trees on other decision features than today's are left out.
        """
        if not data:
            return CostModel()
        if data[:1] == _UBJSON:
            return CostModel(_booster(data))
        trees = msgpack.unpackb(data)
        decisions = _booster(trees["decisions"])
        if decisions is not None and decisions.num_features() != decision_features.WIDTH:
            decisions = None
        return CostModel(_booster(trees["program"]), decisions)


def _booster(data: bytes) -> Any | None:
    if not data:
        return None
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(data))
    return booster


def _more_trees(
    base: Any | None,
    tables: list[Any],
    tasks: list[Measured],
    rounds: int,
    seed: int,
    stop: Callable[[], bool] | None,
) -> Any | None:
    """`base` and new trees; `tables` are the rows of the candidates of each task."""
    if not tasks:
        return base
    labels = np.concatenate([_labels(_on_one_core(task)) for task in tasks])
    weights = np.concatenate([_weights(task) for task in tasks])
    data = xgboost.DMatrix(np.concatenate(tables), labels, weight=weights)
    callbacks = [_Stop(stop)] if stop else []
    parameters = {**_PARAMETERS, "seed": seed}
    return xgboost.train(parameters, data, rounds, xgb_model=base, callbacks=callbacks)


class _Stop(xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """Ends the training after a tree when `stop` returns True."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        super().__init__()
        self._stop = stop

    def after_iteration(self, _model: xgboost.Booster, _epoch: int, _log: dict[str, Any]) -> bool:
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
