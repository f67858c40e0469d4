"""The untuned model, with TVM's default schedules, beside which the tuned one is timed.

Large ones run for minutes. They are not run, and only compiled where the original cannot be run:
something must say what the outputs are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tlmd.client import reports
from tlmd.space import target as targets
from tlmd.types import TargetInfo
from tlmd.workloads import lowering, whole_model
from tlmd.workloads.preparation import LoweredModel

_LONGEST_MS = 5_000.0


@dataclass(frozen=True)
class UntunedModel:
    """The untuned model of one set of input shapes."""

    model: LoweredModel
    target: TargetInfo
    path: Path

    sum_ms: float
    """The sum of its tasks' times in milliseconds; infinite if one is unknown."""

    @property
    def is_run(self) -> bool:
        """Whether it is timed; if not, `sum_ms` is its time."""
        return not _LONGEST_MS < self.sum_ms < math.inf

    def library(self) -> Path:
        """Its library, which is compiled when it is asked for the first time. Raises `Failed`."""
        if not self.path.exists():
            target = targets.tvm_target(self.target)
            whole_model.link(
                lowering.compile_model(self.model.lowered, target).executable, self.path
            )
        return self.path


def prepare(
    models: Sequence[LoweredModel], result: reports.Result, folder: Path
) -> list[UntunedModel]:
    """The untuned models, whose libraries are written to `folder`; those to be run are compiled."""
    untuned = {row.direct.id: row.untuned for row in result.rows()}
    found = []
    for number, model in enumerate(models, 1):
        seconds = sum(task.weight * untuned.get(task.id, math.inf) for task in model.tasks)
        path = folder / f"untuned-{number}.so"
        found.append(UntunedModel(model, result.target, path, 1e3 * seconds))
    for one in found:
        if one.is_run:
            one.library()
    return found
