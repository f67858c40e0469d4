"""A schedule for every heavy task of a model, without measuring: fast enough to check outputs.

TVM's program without any schedule takes a minute for BERT-base. One that its design space offers
takes seconds: a vectorised innermost loop is what counts here, so the widest of a few random draws
is taken.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms

from tlmd.data.computation import DecisionKind
from tlmd.data.types import Candidate, Task
from tlmd.space.apply_trace import InvalidCandidate
from tlmd.space.space import TaskSpace

_HEAVY = 5e8  # operations of one run; unscheduled they take about a second, a schedule half of it
_DRAWS = 24
_INNERMOST = 64  # elements in the innermost loop; more are no faster
_ROWS = 8
_REGISTERS = 384  # elements of float32; more are spilled to memory


def database(tasks: list[Task], target: tvm.target.Target) -> Any:
    """A database in memory with one program for each heavy task that has open decisions."""
    schedules = ms.database.MemoryDatabase(module_equality="structural")
    for task in tasks:
        if task.flops * task.weight >= _HEAVY:
            _commit(schedules, task, target)
    return schedules


def _commit(schedules: ms.database.Database, task: Task, target: tvm.target.Target) -> None:
    space = TaskSpace(task)
    rng = Random(0)
    drawn = [space.random(rng) for _ in range(_DRAWS)]
    drawn.sort(key=lambda candidate: _promise(space, candidate), reverse=True)
    for candidate in drawn[:4]:
        try:
            schedule = space.finish(candidate)
        except InvalidCandidate:
            continue
        arguments = ms.arg_info.ArgInfo.from_prim_func(space.module["main"])
        workload = schedules.commit_workload(space.module)
        record = ms.database.TuningRecord(schedule.trace, workload, [1.0], target, arguments)
        schedules.commit_tuning_record(record)
        return


def _promise(space: TaskSpace, candidate: Candidate) -> float:
    """How good the tiles look: a wide innermost loop, and some rows of outputs in registers."""
    tiles = [
        decision
        for open_decision, decision in zip(
            space.sketches[candidate.sketch].open_decisions, candidate.decisions, strict=True
        )
        if open_decision.kind is DecisionKind.TILE and len(decision) == 4
    ]
    if not tiles:
        return 0.0
    width = tiles[-1][-1]
    rows = math.prod(tile[-1] for tile in tiles[:-1])
    overflow = max(1.0, width * rows / _REGISTERS)
    return min(width, _INNERMOST) * min(rows, _ROWS) / overflow
