"""The features of a program for the cost model: TVM's per-store features, reduced to one row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.s_tir import meta_schedule as ms

from tlmd.data.types import TargetInfo
from tlmd.space.apply_trace import context
from tlmd.space.hardware.target import tvm_target

PER_STORE = 164
WIDTH = 2 * PER_STORE + 1
_PARALLEL = PER_STORE + 39  # log2(1 + iterations of parallel loops), of the store with the most
_PACKED = np.float16  # features are logarithms, for which three digits are enough
_LARGEST = 65504.0


class FeatureExtractor:
    """Computes one row of `WIDTH` numbers per program.

    The row holds the sum and the maximum of MetaSchedule's `PerStoreFeature` (arithmetic, accesses,
    reuse, parallelism) over the stores of the program, and the number of stores.
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


class FeatureExtractors:
    """One extractor per target, made when it is first needed."""

    def __init__(self) -> None:
        self._extractors: dict[str, FeatureExtractor] = {}

    def of(self, target: TargetInfo) -> FeatureExtractor:
        """The extractor for a target."""
        if target.spec not in self._extractors:
            self._extractors[target.spec] = FeatureExtractor(target)
        return self._extractors[target.spec]


def speedup(rows: NDArray[np.float32], cores: int) -> NDArray[np.float32]:
    """How many times faster `cores` cores run programs than one core, at best ``[len(rows)]``.

    `rows` are features. A parallel loop takes as long as the core with the most iterations of it.
    """
    iterations = np.maximum(np.round(np.exp2(rows[:, _PARALLEL]) - 1), 1)
    shares: NDArray[np.float32] = (iterations / np.ceil(iterations / cores)).astype(np.float32)
    return shares


def pack_features(row: NDArray[np.float32]) -> bytes:
    """One row of features as float16, for a record."""
    return np.clip(row, -_LARGEST, _LARGEST).astype(_PACKED).tobytes()


def unpack_features(data: bytes) -> NDArray[np.float32] | None:
    """The row ``[WIDTH]`` that `pack_features` packed; None for data of another width."""
    if len(data) != WIDTH * np.dtype(_PACKED).itemsize:
        return None
    return np.frombuffer(data, _PACKED).astype(np.float32)
