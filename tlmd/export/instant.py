"""`tlmd compile`: a model compiled without measuring anything.

While a model is accepted, its outputs are compared anyway. Here the library that is compared is the
one that is exported, so that a model is compiled once only.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import tvm

from tlmd.data.errors import Failed, NotImportable
from tlmd.data.types import TargetInfo, Task
from tlmd.export import libraries, model_in_parts, reports, whole_model
from tlmd.export.libraries import TunedLibrary
from tlmd.export.program_source import ProgramSource
from tlmd.export.result import Result, TaskResult
from tlmd.export.tune_result import TuneResult
from tlmd.lowering import comparison, trial_inputs
from tlmd.lowering.acceptance import Accepted
from tlmd.lowering.preparation import LoweredModel, PreparedModel, merged_tasks
from tlmd.pipeline.task_state import TaskState
from tlmd.processes.stage_times import stage
from tlmd.space.cache import SpaceCache


class InstantPrograms:
    """Compiles lowered models with the programs of a `ProgramSource`; libraries go to `folder`."""

    def __init__(self, source: ProgramSource, target: TargetInfo, folder: Path) -> None:
        self._source, self._target, self._folder = source, target, folder
        self._spaces = SpaceCache()
        self._made: dict[int, TunedLibrary] = {}
        self._models: list[LoweredModel] = []  # keeps the ids of `_made` in use
        self._tasks: dict[int, list[Task]] = {}
        self._has_known = self._refused = False

    def run(self, model: LoweredModel) -> comparison.Run:
        """A function that runs the model's library."""
        return comparison.runner(tvm.runtime.load_module(str(self.library(model).path)))

    def refuse(self) -> bool:
        """The outputs were wrong, with TVM's default schedules they are right.

        The first time the cost model's choices replace the known programs, if there were any, and
        the outputs are to be compared again (True). After that, the default schedules are used.
        """
        self._refused = not self._has_known
        self._source.forget_known()
        self._has_known = False
        self._made.clear()
        return not self._refused

    def library(self, model: LoweredModel) -> TunedLibrary:
        """The library of a model. Raises `Failed`."""
        if id(model) not in self._made:
            self._models.append(model)
            result = self.result(model.spec.name, self.tasks([model]))
            with stage("compile"):
                compiled = libraries.compiled_in_memory(model, result, self._spaces)
            with stage("link"):
                path = self._folder / f"{len(self._models)}.so"
                self._made[id(model)] = libraries.linked(compiled, path)
        return self._made[id(model)]

    def tasks(self, models: Sequence[LoweredModel]) -> list[Task]:
        """The tasks of these models, with their alternatives."""
        if len(models) != 1:
            return merged_tasks(models)
        (model,) = models
        if id(model) not in self._tasks:
            with stage("alternatives"):
                self._tasks[id(model)] = merged_tasks(models)
        return self._tasks[id(model)]

    def result(self, name: str, tasks: list[Task]) -> Result:
        """The programs of these tasks."""
        if self._refused:
            return Result(name, self._target, 0, [TaskState(task, []) for task in tasks])
        with stage("choose programs"):
            found = self._source.find(name, tasks, self._target, self._spaces)
        self._has_known |= bool(found.known)
        return found

    def write_database(self, folder: Path, result: Result) -> None:
        """Write the programs of `result` as a database of MetaSchedule."""
        libraries.write_database(folder, result, self._spaces)


def deliver(
    accepted: Accepted,
    programs: InstantPrograms,
    tasks: list[Task],
    out: Path | None,
    started_at: float,
) -> TuneResult:
    """Write an accepted model with `programs` to `out`. `started_at` is monotonic time in seconds.

    `tasks` are those of all its parts. Raises `Failed`.
    """
    models = accepted.models
    for model in models:
        if not model.is_whole:
            _compare_parts(model, programs)
    result = programs.result(models[0].spec.name, tasks)
    made = [[programs.library(part) for part in model.lowered] for model in models]
    result.works = accepted.error is not None
    if out is not None:
        with stage("export"):
            _write(models, made, programs, result, out)
    document = result.summary(time.monotonic() - started_at, (None, made[0]))
    document |= {"error": accepted.error, "programs": _origins(result)}
    document |= reports.left_to_framework(models[0].flow)
    tuned = TuneResult(document, out, None, False, ("",) * len(document["tasks"]))
    if out is not None:
        reports.write(out, tuned)
    return tuned


def _origins(result: Result) -> dict[str, int]:
    """How many tasks have which kind of program."""
    rows = result.rows()
    refused = {"refused": result.refused} if result.refused else {}
    return dict(Counter(_origin(row, row.direct.id in result.known) for row in rows)) | refused


def _origin(row: TaskResult, is_known: bool) -> str:
    if row.record:
        return "recorded"
    if row.predicted:
        return "known" if is_known else "predicted"
    return "default"


def _compare_parts(model: PreparedModel, programs: InstantPrograms) -> None:
    """Refuse `programs` if they give a model in parts wrong outputs. Each part works by itself."""
    if not model.lowered or not model.flow.repeatable or not model.can_be_run:
        return
    least = max(comparison.tolerated(part.source) for part in model.lowered)
    expected, _ = trial_inputs.expected(model.source)
    compares = True
    while compares:
        runs = [comparison.for_arrays(programs.run(part)) for part in model.lowered]
        run = comparison.in_parts(model.flow, runs)
        try:
            comparison.largest_of(model.source, run, expected, least)
            return
        except NotImportable:
            compares = programs.refuse()


def _write(
    models: Sequence[PreparedModel],
    made: Sequence[Sequence[TunedLibrary]],
    programs: InstantPrograms,
    result: Result,
    out: Path,
) -> None:
    programs.write_database(out, result)
    entries, number = [], 0
    try:
        for place, (model, of_model) in enumerate(zip(models, made, strict=True), 1):
            paths = []
            for one in of_model:
                number += 1
                paths.append(out / libraries.file(number))
                shutil.copyfile(one.path, paths[-1])
                paths[-1].chmod(one.path.stat().st_mode)
            entries.append(model_in_parts.save(model, paths, out, place))
    except OSError as error:
        raise Failed(f"cannot write to {out}: {error.strerror or error}") from error
    framework = next((m.flow.framework for m in models if not m.is_whole), "")
    whole_model.write_runners(out, models[0].source, entries, result.target, framework)
