"""Compiles a job's model with the best program of each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms

from tlmd.data.errors import Failed
from tlmd.data.types import Candidate, TargetInfo, Task
from tlmd.export import whole_model
from tlmd.export.result import Result
from tlmd.lowering import alternatives, lowering
from tlmd.lowering.lowering import Compiled
from tlmd.lowering.preparation import LoweredModel
from tlmd.records import metaschedule_files
from tlmd.space.cache import SpaceCache
from tlmd.space.hardware import target as targets


@dataclass(frozen=True)
class TunedLibrary:
    """The tuned library of one set of input shapes."""

    path: Path

    functions: int
    """Number of tunable functions."""

    functions_with_record: int


def tuned(models: Sequence[LoweredModel], result: Result, folder: Path) -> list[TunedLibrary]:
    """Export the best programs as a database to `folder`, and compile each model with them there.

    Replaces what an earlier call has written. Raises `Failed`.
    """
    database = write_database(folder, result)
    return [
        linked(compiled_with(model, result, database), folder / file(number))
        for number, model in enumerate(models, 1)
    ]


def compiled_with(model: LoweredModel, result: Result, database: Any) -> Compiled:
    """A model with the programs of `result`, which `database` holds. Raises `Failed`."""
    used = result.alternatives()
    target = targets.tvm_target(result.target)
    chosen = alternatives.substitute(model.lowered, used)
    compiled = lowering.compile_model(chosen, target, database, to_link=True)
    if compiled.missing:
        rows = result.rows()
        absent = {r.direct.id for r in rows if not _has_trace(r.candidate, result.target)}
        tasks = alternatives.direct_tasks(model.lowered, used)
        missing = [name for name in compiled.missing if tasks[name] not in absent]
        if missing:
            raise Failed(f"records were not applied to {', '.join(missing[:5])}")
    return compiled


def compiled_in_memory(model: LoweredModel, result: Result, spaces: SpaceCache) -> Compiled:
    """A model with the programs of `result`, without files. Raises `Failed`."""
    database = ms.database.MemoryDatabase(module_equality="structural")
    commit(database, result, spaces, only_chosen=True)
    return compiled_with(model, result, database)


def linked(compiled: Compiled, path: Path) -> TunedLibrary:
    """Write a compiled model as a library. Not the executable is kept: it holds all weights."""
    whole_model.link(compiled.executable, path)
    return TunedLibrary(path, compiled.functions, compiled.functions_with_record)


def file(number: int) -> str:
    """The name of the library number `number`, from 1 on."""
    return "model.so" if number == 1 else f"model-{number}.so"


def write_database(folder: Path, result: Result, spaces: SpaceCache | None = None) -> Any:
    """Write the programs of `result` to `folder` as a database of MetaSchedule."""
    database = metaschedule_files.create(folder)
    commit(database, result, spaces or SpaceCache())
    metaschedule_files.check_written(folder)
    metaschedule_files.write_intrinsics(folder)
    return database


def commit(
    database: ms.database.Database, result: Result, spaces: SpaceCache, only_chosen: bool = False
) -> None:
    """Put the programs of `result` into a database.

    `only_chosen`: without those of direct tasks of which an alternative is chosen.
    """
    target = targets.tvm_target(result.target)
    for row in result.rows():
        if not (only_chosen and row.chosen.alternative):
            plain = row.direct_record
            seconds = plain.outcome.seconds if plain else row.untuned
            _commit(database, row.direct, row.direct_candidate, seconds, target, spaces)
        if row.chosen.alternative:
            _commit(database, row.chosen, row.candidate, row.seconds, target, spaces)


def _has_trace(candidate: Candidate | None, target: TargetInfo) -> bool:
    """Whether the database has a trace for a task whose best program is `candidate`.

    A CPU runs a function without a schedule. A card does not: TVM binds its loops to threads when
    it compiles the model, but not those of a function that has a trace.
    """
    return candidate is not None or target.device == "cpu"


def _commit(
    database: ms.database.Database,
    task: Task,
    candidate: Candidate | None,
    seconds: float,
    target: tvm.target.Target,
    spaces: SpaceCache,
) -> None:
    """Write the best program of a task, or its default schedule where `candidate` is None."""
    if not _has_trace(candidate, task.target):
        return
    trace = metaschedule_files.UNSCHEDULED
    if candidate is not None:
        trace = spaces.get(task).trace_json(candidate)
    metaschedule_files.commit(database, task, trace, seconds, target)
