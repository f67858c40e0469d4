"""Compiles a job's model with the best program of each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.data.errors import Failed
from tlmd.data.types import Record, TargetInfo, Task
from tlmd.export import reports, whole_model
from tlmd.lowering import alternatives, lowering
from tlmd.lowering.preparation import LoweredModel
from tlmd.records import metaschedule_files
from tlmd.space.hardware import target as targets
from tlmd.space.space import TaskSpace

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import meta_schedule as ms


@dataclass(frozen=True)
class TunedLibrary:
    """The tuned library of one set of input shapes."""

    path: Path

    functions: int
    """Number of tunable functions."""

    functions_with_record: int


def tuned(
    models: Sequence[LoweredModel], result: reports.Result, folder: Path
) -> list[TunedLibrary]:
    """Export the best programs as a database to `folder`, and compile each model with them there.

    Replaces what an earlier call has written. Raises `Failed`.
    """
    target = targets.tvm_target(result.target)
    database = _database(folder, result, target)
    used = result.alternatives()
    absent = {row.direct.id for row in result.rows() if not _has_trace(row.record, result.target)}
    libraries = []
    for number, model in enumerate(models, 1):
        chosen = alternatives.substitute(model.lowered, used)
        compiled = lowering.compile_model(chosen, target, database)
        if compiled.missing:
            tasks = alternatives.direct_tasks(model.lowered, used)
            missing = [name for name in compiled.missing if tasks[name] not in absent]
            if missing:
                raise Failed(f"records were not applied to {', '.join(missing[:5])}")
        path = whole_model.link(compiled.executable, folder / _file(number))
        # Not the executable: it holds all weights.
        libraries.append(TunedLibrary(path, compiled.functions, compiled.functions_with_record))
    return libraries


def _file(number: int) -> str:
    return "model.so" if number == 1 else f"model-{number}.so"


def _database(folder: Path, result: reports.Result, target: tvm.target.Target) -> Any:
    database = metaschedule_files.create(folder)
    for row in result.rows():
        _commit(database, row.direct, row.direct_record, row.untuned, target)
        if row.chosen.alternative:
            _commit(database, row.chosen, row.record, row.untuned, target)
    metaschedule_files.check_written(folder)
    metaschedule_files.write_intrinsics(folder)
    return database


def _has_trace(record: Record | None, target: TargetInfo) -> bool:
    """Whether the database has a trace for a task whose best program is `record`.

    A CPU runs a function without a schedule. A card does not: TVM binds its loops to threads when
    it compiles the model, but not those of a function that has a trace.
    """
    return record is not None or target.device == "cpu"


def _commit(
    database: ms.database.Database,
    task: Task,
    record: Record | None,
    untuned: float,
    target: tvm.target.Target,
) -> None:
    """Write the best program of a task, or its default schedule where `record` is None."""
    if not _has_trace(record, task.target):
        return
    trace, seconds = metaschedule_files.UNSCHEDULED, untuned
    if record is not None:
        trace = TaskSpace(task).trace_json(record.candidate)
        seconds = record.outcome.seconds
    metaschedule_files.commit(database, task, trace, seconds, target)
