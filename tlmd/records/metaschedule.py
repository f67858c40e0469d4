"""MetaSchedule's JSON database: results for any TVM program, and old tuning logs as records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import Schedule, Trace
from tvm.s_tir import meta_schedule as ms

from tlmd.errors import BadInput
from tlmd.types import Task

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
# TVM ignores a record whose trace is empty; looking at the root block changes nothing.
UNSCHEDULED = '[[["GetSBlock",[],["root","main"],["b0"]]],[]]'


def create(directory: Path) -> Any:
    """An empty `JSONDatabase` in `directory`; files of an earlier export are replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in (WORKLOADS, RECORDS):
        (directory / name).unlink(missing_ok=True)
    return ms.database.JSONDatabase(work_dir=str(directory), module_equality="structural")


def commit(database: Any, task: Task, trace: str, seconds: float, target: Any) -> None:
    """Write one program of `task`: its trace before the postprocessors, and its time in seconds.

    The database keeps the final trace, postprocessors included, so that applying it needs no rule.
    `UNSCHEDULED` stands for TVM's default: the function gets a record that changes nothing.
    """
    module = tvm.ir.load_json(task.module)
    workload = database.commit_workload(module)
    schedule = Schedule(module)
    Trace.apply_json_to_schedule(json.loads(trace), schedule)
    arguments = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    if trace != UNSCHEDULED:
        from tlmd.space.schedule import finish

        finish(schedule, task.target)
    record = ms.database.TuningRecord(schedule.trace, workload, [seconds], target, arguments)
    database.commit_tuning_record(record)


def read(directory: Path) -> Iterator[tuple[Any, Any, list[float]]]:
    """Every record of a database as ``(module, trace, seconds)``; raises `BadInput` if damaged."""
    for name in (WORKLOADS, RECORDS):
        if not (directory / name).is_file():
            raise BadInput(f"{directory} holds no MetaSchedule database ({name} is missing)")
    try:
        database = ms.database.JSONDatabase(work_dir=str(directory), module_equality="structural")
        records: Iterable[Any] = list(database.get_all_tuning_records())
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1][:160]
        raise BadInput(f"the database in {directory} is damaged: {reason}") from error
    for record in records:
        seconds = [float(s) for s in record.run_secs or ()]
        yield record.workload.mod, record.trace, seconds
