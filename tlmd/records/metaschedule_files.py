"""MetaSchedule's JSON database: export of programs to TVM, and import of tuning logs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm.s_tir import Schedule, Trace
from tvm.s_tir import meta_schedule as ms

from tlmd.alternatives.named_intrinsics import named, register_named
from tlmd.alternatives.words.words import registration
from tlmd.data.errors import BadInput, Failed
from tlmd.data.types import Task
from tlmd.space import task_module

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
INTRINSICS = "intrinsics.py"
_FAILED_S = 1e9  # MetaSchedule writes 1e10 seconds for a program that failed, and applies no such
_UNKNOWN_S = _FAILED_S  # of a program that was not timed: applied where there is no other
# TVM ignores a record with an empty trace. This trace has one instruction, which changes nothing.
UNSCHEDULED = '[[["GetSBlock",[],["root","main"],["b0"]]],[]]'


def create(directory: Path) -> Any:
    """Create an empty `JSONDatabase` in `directory`. Replaces the files of an earlier export."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in (WORKLOADS, RECORDS):
        (directory / name).unlink(missing_ok=True)
    return ms.database.JSONDatabase(work_dir=str(directory), module_equality="structural")


def commit(database: Any, task: Task, trace: str, seconds: float, target: Any) -> None:
    """Write one program of `task`: its trace before the postprocessors, and its time in seconds.

    The database gets the trace after the postprocessors, so that TVM can apply it without them.
    The trace `UNSCHEDULED` keeps TVM's default: it is a record that changes nothing.
    """
    module = task_module.load(task.module)
    workload = database.commit_workload(module)
    schedule = Schedule(module)
    register_named(trace)
    Trace.apply_json_to_schedule(json.loads(trace), schedule)
    arguments = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    if trace != UNSCHEDULED:
        from tlmd.space.apply_trace import finish

        finish(schedule, task.target)
    seconds = seconds if math.isfinite(seconds) else _UNKNOWN_S
    record = ms.database.TuningRecord(schedule.trace, workload, [seconds], target, arguments)
    database.commit_tuning_record(record)


def write_intrinsics(directory: Path) -> None:
    """Write ``intrinsics.py``, without which TVM cannot read a database that names ours.

    Where it names none, the file of an earlier export is removed.
    """
    path, used = directory / INTRINSICS, named((directory / RECORDS).read_text())
    path.unlink(missing_ok=True)
    if used:
        path.write_text(registration(used))


def check_written(directory: Path) -> None:
    """Raise `Failed` if a database was not written completely: TVM ignores a full disk."""
    try:
        _check(directory)
    except BadInput as error:
        raise Failed(f"cannot write the database to {directory}; free some disk") from error


@dataclass(frozen=True)
class DatabaseEntry:
    """One record of a database, with TVM's module, trace and target."""

    module: Any
    trace: Any

    seconds: float | None
    """None: the program failed."""

    target: Any


def read(directory: Path) -> Iterator[DatabaseEntry]:
    """Yield all records of a database. Raises `BadInput` if it is damaged or does not exist."""
    for name in (WORKLOADS, RECORDS):
        if not (directory / name).is_file():
            raise BadInput(f"{directory} holds no MetaSchedule database ({name} is missing)")
    _check(directory)
    register_named((directory / RECORDS).read_text())
    try:
        database = ms.database.JSONDatabase(work_dir=str(directory), module_equality="structural")
        records: Iterable[Any] = list(database.get_all_tuning_records())
    except Exception as error:  # TVM raises several kinds for a damaged database
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise BadInput(_damaged(directory, lines[-1][:160])) from error
    for record in records:
        samples = [float(s) for s in record.run_secs or ()]
        best = min(samples, default=_FAILED_S)
        seconds = best if 0 < best < _FAILED_S else None
        yield DatabaseEntry(record.workload.mod, record.trace, seconds, record.target)


def _check(directory: Path) -> None:
    """Raise `BadInput` for damage that would crash TVM."""
    for name in (WORKLOADS, RECORDS):
        try:
            lines = (directory / name).read_text().splitlines()
        except OSError as error:
            raise BadInput(f"cannot read {directory / name}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise BadInput(_damaged(directory, f"{name} is not text")) from error
        for number, line in enumerate(lines, 1):
            try:
                valid = isinstance(row := json.loads(line), list) and len(row) == 2
            except ValueError:
                valid = False
            if not valid:
                raise BadInput(_damaged(directory, f"line {number} of {name}"))


def _damaged(directory: Path, reason: str) -> str:
    return f"the database in {directory} is damaged ({reason}); restore a copy"
