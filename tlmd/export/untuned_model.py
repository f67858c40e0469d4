"""The untuned model, with TVM's default schedules, beside which the tuned one is timed.

Its time only says how much tuning has brought, and the sum of its tasks' times, which are known,
says the same: 5.8 s for ResNet-18 on two slow cores, where compiling and timing it took 11 s
(`python -m benchmarks.time_to_model`). So only small models are timed. A larger one is compiled
and run only where the original cannot be run: the outputs of the tuned model are then compared with
its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tlmd.data.types import TargetInfo
from tlmd.export import whole_model
from tlmd.export.result import Result
from tlmd.lowering import lowering
from tlmd.lowering.preparation import LoweredModel
from tlmd.space.hardware import target as targets

_LONGEST_MS = 500.0


@dataclass(frozen=True)
class UntunedModel:
    """The untuned model of one set of input shapes."""

    model: LoweredModel
    target: TargetInfo
    path: Path

    sum_ms: float
    """The sum of its tasks' times in milliseconds; infinite if one is unknown."""

    @property
    def is_timed(self) -> bool:
        """Whether it is timed; if not, `sum_ms` is its time."""
        return not _LONGEST_MS < self.sum_ms < math.inf

    def library(self) -> Path:
        """Its library, which is compiled when it is asked for the first time. Raises `Failed`."""
        if not self.path.exists():
            target = targets.tvm_target(self.target)
            compiled = lowering.compile_model(self.model.lowered, target, to_link=True)
            whole_model.link(compiled.executable, self.path)
        return self.path


def prepare(models: Sequence[LoweredModel], result: Result, folder: Path) -> list[UntunedModel]:
    """The untuned models. Models to be timed are compiled to libraries in `folder`."""
    untuned = {row.direct.id: row.untuned for row in result.rows()}
    prepared = []
    for number, model in enumerate(models, 1):
        seconds = sum(task.weight * untuned.get(task.id, math.inf) for task in model.tasks)
        path = folder / f"untuned-{number}.so"
        one = UntunedModel(model, result.target, path, 1e3 * seconds)
        if one.is_timed:
            one.library()
        prepared.append(one)
    return prepared
