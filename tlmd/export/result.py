"""The results of a job: the exported program of each task, and the document ``summary.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tlmd.data.model_spec import BF16, FP32, INT8
from tlmd.data.types import Candidate, Record, TargetInfo, Task
from tlmd.data.units import microseconds
from tlmd.pipeline.task_groups import TaskGroup
from tlmd.pipeline.task_state import TaskState

SCHEMA = 1
_NEARLY = 1.15  # of the best time: inside of the model the order may be another one


@dataclass(frozen=True)
class TaskResult:
    """One group of alternatives of the result; most have only the direct task."""

    direct: Task
    chosen: Task
    """The task whose program is exported."""

    record: Record | None
    """The exported program. None: it is `predicted`, else TVM's default schedule."""

    direct_record: Record | None
    """The best program of the direct task, for TVM programs that know no alternatives."""

    untuned: float
    """Seconds of TVM's default schedule; infinite if unknown."""

    trials: int
    """Number of measurements of the group."""

    predicted: Candidate | None = None
    """The exported program of the chosen task, where nothing was measured."""

    @property
    def seconds(self) -> float:
        """The time of the exported program; infinite if it was not measured."""
        return self.record.outcome.seconds if self.record else self.untuned

    @property
    def candidate(self) -> Candidate | None:
        """The exported program. None: the model keeps TVM's default schedule."""
        return self.record.candidate if self.record else self.predicted

    @property
    def direct_candidate(self) -> Candidate | None:
        """The best known program of the direct task."""
        if self.direct_record is not None:
            return self.direct_record.candidate
        return None if self.chosen.alternative else self.predicted

    @property
    def is_measured(self) -> bool:
        """Whether the exported program was measured, be it TVM's default schedule."""
        return math.isfinite(self.seconds)


@dataclass
class Result:
    """The results of a finished job."""

    model: str
    target: TargetInfo
    checkpoint: int
    states: list[TaskState]

    shares: dict[str, tuple[float, str]] = field(default_factory=dict)
    """The share, by the id of the chosen task, of the nearer roofline limit that its program
    reaches, and the name of this limit. Empty: not measured."""

    predicted: dict[str, tuple[Task, Candidate]] = field(default_factory=dict)
    """Of computations without any record, by the id of the direct task: the alternative, and the
    program that is known for it or that the cost model has chosen."""

    known: set[str] = field(default_factory=set)
    """The direct tasks in `predicted` with a known program."""

    refused: int = 0
    """Recorded and known programs that were not taken, because TVM refuses them."""

    works: bool = False
    """The outputs of the whole model were compared with those of the original."""

    preferred: dict[str, str] = field(default_factory=dict)
    """The id, by that of a direct task, of the alternative that is exported instead of the fastest
    one."""

    def rows(self) -> list[TaskResult]:
        """The exported program of each group: the best verified one if it beats the default.

        Where nothing was measured, it is the predicted one.
        """
        rows = [_row_of(group, self.preferred) for group in self._groups()]
        return [self._predicted_row(row) or row for row in rows]

    def _predicted_row(self, row: TaskResult) -> TaskResult | None:
        if row.is_measured or row.direct.id not in self.predicted:
            return None
        task, candidate = self.predicted[row.direct.id]
        return replace(row, chosen=task, predicted=candidate)

    def rivals(self) -> dict[str, str]:
        """For each group where another alternative is nearly as fast as the best one: the ids of
        the direct task and of that alternative."""
        rivals = {}
        for group in self._groups():
            best, *others = sorted(group.members, key=lambda state: state.best_seconds)
            limit = min(_NEARLY * best.best_seconds, group.baseline_s)
            if others and others[0].best_seconds <= limit < math.inf:
                rivals[_direct(group).task.id] = others[0].task.id
        return rivals

    def _groups(self) -> list[TaskGroup]:
        groups: dict[str, TaskGroup] = {}
        for state in self.states:
            key = state.task.computation
            groups.setdefault(key, TaskGroup(key, state.task.weight)).members.append(state)
        return list(groups.values())

    def alternatives(self) -> dict[str, Task]:
        """The alternatives that are exported, by the ids of the direct tasks."""
        return {row.direct.id: row.chosen for row in self.rows() if row.chosen.alternative}

    @property
    def precision(self) -> str:
        """The shortest numbers that an exported program multiplies: one of `PRECISIONS`."""
        from tlmd.alternatives.catalogue import declared  # loads TVM; the terminal does not

        used = {declared(task.alternative).multiplies for task in self.alternatives().values()}
        return INT8 if "int8" in used else BF16 if "bfloat16" in used else FP32

    def summary(self, wall_s: float, whole: tuple[Any, Any] | None) -> dict[str, Any]:
        """The document of ``summary.json``. `whole` is the times and the tuned libraries.

        The times are None if the model was not timed: theirs and the error are None then.
        The key ``precision`` is there only where programs multiply shorter numbers than float32.
        """
        records = [r for s in self.states for r in s.records]
        document = {
            "schema": SCHEMA,
            "model": self.model,
            "target": self.target.spec,
            "checkpoint": self.checkpoint,
            "wall_s": round(wall_s, 3),
            "measured": sum(s.trials for s in self.states),
            "failed": sum(not r.outcome.ok for r in records),
            "tasks": [self._task(row) for row in self.rows()],
            "e2e": _whole(*whole) if whole else None,
        }
        precision = self.precision
        return document | ({"precision": precision} if precision != FP32 else {})

    def _task(self, row: TaskResult) -> dict[str, Any]:
        share = self.shares.get(row.chosen.id, (None, ""))[0]
        return {
            "name": row.chosen.name,
            "weight": row.direct.weight,
            "flops": row.direct.flops,
            "untuned_us": microseconds(row.untuned),
            "best_us": microseconds(row.seconds),
            "trials": row.trials,
            "peak_fraction": None if share is None else round(share, 4),
            # Tuned programs are verified against the default schedule, so it counts as verified.
            # Predicted ones were compared as parts of the model.
            "verified": row.is_measured or self.works,
            "version": row.record.version if row.record else None,
        }


def _row_of(group: TaskGroup, preferred: Mapping[str, str]) -> TaskResult:
    direct, limit = _direct(group), group.baseline_s
    key = preferred.get(direct.task.id)
    best = next((state for state in group.members if state.task.id == key), group.best)
    chosen = best if best.best_seconds <= limit else direct
    record, plain = (s.best if s.best_seconds <= limit else None for s in (chosen, direct))
    return TaskResult(direct.task, chosen.task, record, plain, limit, group.trials)


def _direct(group: TaskGroup) -> TaskState:
    return next(state for state in group.members if not state.task.alternative)


def _whole(times: Any, libraries: Any) -> dict[str, Any]:
    return {
        "untuned_ms": times and round(times.untuned_ms, 4),
        "tuned_ms": times and round(times.tuned_ms, 4),
        "max_abs_err": times and times.max_abs_err,
        "functions": sum(one.functions for one in libraries),
        "functions_with_record": sum(one.functions_with_record for one in libraries),
    }
