"""What the ranker sees of a program: TVM's per-store features, summed up to one row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.s_tir import meta_schedule as ms

from tlmd.space.schedule import context
from tlmd.space.target import tvm_target
from tlmd.types import TargetInfo

PER_STORE = 164
WIDTH = 2 * PER_STORE + 1


class FeatureExtractor:
    """Turns final modules into rows of `WIDTH` numbers: sum and maximum over stores, their count.

    The features are MetaSchedule's `PerStoreFeature` (arithmetic, accesses, reuse, parallelism).
    """

    def __init__(self, target: TargetInfo) -> None:
        self._extractor = ms.feature_extractor.PerStoreFeature()
        self._context = context(tvm_target(target))

    def rows(self, schedules: list[Any]) -> NDArray[np.float32]:
        """Features ``[len(schedules), WIDTH]`` of schedules whose postprocessors have run."""
        candidates = [
            ms.MeasureCandidate(s, ms.arg_info.ArgInfo.from_entry_func(s.mod, True))
            for s in schedules
        ]
        table = np.zeros((len(schedules), WIDTH), np.float32)
        if candidates:
            for row, stores in zip(
                table, self._extractor.extract_from(self._context, candidates), strict=True
            ):
                numbers = stores.numpy()
                row[:PER_STORE] = numbers.sum(0)
                row[PER_STORE : 2 * PER_STORE] = numbers.max(0)
                row[-1] = len(numbers)
        return table
