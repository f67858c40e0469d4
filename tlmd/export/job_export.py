"""From records to files: compile a job's model with its best programs, time it, write it.

This runs in the user's process and reads the record store, so it works with and without a daemon.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tlmd.data.errors import BadInput, Failed
from tlmd.data.types import TargetInfo, Task
from tlmd.export import (
    libraries,
    model_choice,
    model_in_parts,
    reports,
    untuned_model,
    whole_model,
)
from tlmd.export.library import Entry
from tlmd.export.result import Result
from tlmd.export.tune_result import TuneResult, check_out
from tlmd.export.whole_model_times import WholeModelTimer, WholeModelTimes
from tlmd.lowering import acceptance, alternatives, lowering
from tlmd.lowering.preparation import PreparedModel
from tlmd.measure.cores.core_plan import CARD, card_cores, plan_cores
from tlmd.measure.cores.slot_lock import exclusively, slot_lock
from tlmd.measure.server.program import traffic
from tlmd.measure.timing.peak import Roofline, kept_roofline, measure_roofline
from tlmd.models.parts.flow import Flow
from tlmd.pipeline.task_state import TaskState
from tlmd.processes.stage_times import stage
from tlmd.records import job_specs
from tlmd.records.job_specs import JobSpec
from tlmd.records.store import RecordStore
from tlmd.records.task_file import load_tasks
from tlmd.space.hardware import target as targets

_Item = TypeVar("_Item")
_SLOWED = 1.15  # times the reference kernel's time of a quiet machine


def export(state_dir: Path, job_id: str, out: Path | None, lowered: bool = False) -> TuneResult:
    """Compile and write the best programs of a job so far. Raises `BadInput` and `Failed`.

    `lowered`: also write the modules that the records apply to, for TVM without tlmd.
    """
    started_at = time.monotonic()
    check_out(out)
    with RecordStore(state_dir / "records.sqlite", read_only=True) as store:
        job = job_specs.find(store, job_id)
        if job is None:
            raise BadInput(f"no job {job_id!r} in {state_dir}; `tlmd jobs` lists them")
        spec = job[0]
        tasks = _tasks(spec, state_dir)
        states = read_states(store, tasks)
    if not spec.request.name:
        raise BadInput(
            "a corpus has no model to export; `tlmd checkpoints` lists the checkpoints that it made"
        )
    target = states[0].task.target if states else _target_of(spec)
    models = acceptance.accept(spec.model_spec, target).models
    return deliver(models, states, target, state_dir, out, started_at, lowered=lowered)


def _target_of(spec: JobSpec) -> TargetInfo:
    """The target of a job that has no task which says it."""
    return targets.resolve(spec.request.target, len(plan_cores().run))


def _write_lowered(models: Sequence[PreparedModel], result: Result, out: Path) -> None:
    """Write ``lowered.json``, ``lowered-2.json``...: one for each library."""
    used = result.alternatives()
    parts = [part for model in models for part in model.lowered]
    for number, model in enumerate(parts, 1):
        file = out / ("lowered.json" if number == 1 else f"lowered-{number}.json")
        lowering.save(alternatives.substitute(model.lowered, used), file)


def _tasks(spec: JobSpec, state_dir: Path) -> list[Task]:
    path = job_specs.tasks_file(spec, state_dir)
    if path is None:
        raise Failed(f"the model of job {spec.id} is not lowered yet; wait for it")
    return load_tasks(path)


def read_states(store: RecordStore, tasks: list[Task]) -> list[TaskState]:
    """Read the records and the baseline of each task from the store."""
    return [TaskState(task, store.records(*task.key), store.baseline(*task.key)) for task in tasks]


def interrupted(
    model: str, states: list[TaskState], target: TargetInfo, started_at: float
) -> TuneResult:
    """Return the result of a job that the user stopped: nothing is compiled."""
    result = Result(model, target, _version(states), states)
    return TuneResult(result.summary(time.monotonic() - started_at, None), None, None, True)


def deliver(
    models: Sequence[PreparedModel],
    states: list[TaskState],
    target: TargetInfo,
    state_dir: Path,
    out: Path | None,
    started_at: float,
    before_timing: Callable[[], None] = lambda: None,
    lowered: bool = False,
) -> TuneResult:
    """Compile, verify, time and write the model. `started_at` is monotonic time in seconds.

    Each set of input shapes (`models`) becomes a library, or several and what the framework runs;
    the result has the times of the first.
    A model that would run untuned for more than half a second is not timed so (`untuned_model`):
    that time is then the sum of its tasks'.
    `before_timing` is called when the model is compiled, before anything is timed. `lowered`: as in
    `export`.
    """
    result = Result(models[0].spec.name, target, _version(states), states)
    cores = card_cores(None, 0).run if target.device == CARD else plan_cores(run=target.cores).run
    with tempfile.TemporaryDirectory(prefix="tlmd-") as name:
        with _Timers(models, cores, Path(name), target.device) as timers:
            build = _Build(models, result, out or Path(name) / "out", Path(name))
            before_timing()
            with _reserved_slot(state_dir, cores):
                with stage("choose rivals"):
                    build.choose(cores)
                with stage("roofline"):
                    result.shares = _shares(result, target, cores, state_dir, timers)
                with stage("whole-model times"):
                    times = build.measure(timers) if all(m.can_be_run for m in models) else None
        build.write_runners()
        if lowered and out is not None:
            _write_lowered(models, result, out)
    tuned_model = _result(result, build, times[0] if times else None, started_at, out)
    if out is not None:
        reports.write(out, tuned_model)
    return tuned_model


class _Timers(ExitStack):
    """The processes that time each set of input shapes. The first one begins at once."""

    def __init__(
        self, models: Sequence[PreparedModel], cores: tuple[int, ...], scratch: Path, device: str
    ) -> None:
        super().__init__()
        self._models, self._cores, self._scratch, self._device = models, cores, scratch, device
        self.first: WholeModelTimer | None = None
        if models[0].can_be_run:
            self.first = self.of(0)

    def of(self, number: int) -> WholeModelTimer:
        """The process for one set of input shapes."""
        if number == 0 and self.first is not None:
            return self.first
        model, scratch = self._models[number], self._scratch / f"times-{number}"
        scratch.mkdir()
        inputs = model.source.random_inputs(0)
        timer = WholeModelTimer(model.spec, inputs, self._cores, scratch, self._device)
        return self.enter_context(timer)


class _Build:
    """The libraries of a model: tuned, untuned, and with rivals of the best alternatives."""

    def __init__(
        self, models: Sequence[PreparedModel], result: Result, folder: Path, scratch: Path
    ) -> None:
        self._models, self._result = models, result
        self._folder, self._scratch = folder, scratch
        self._parts = [part for model in models for part in model.lowered]
        with stage("compile untuned"):
            self.untuned = self._by_model(untuned_model.prepare(self._parts, result, scratch))
        with stage("compile"):
            self._build()
        with stage("compile rivals"):
            self._rivals = model_choice.compile_rivals(self._parts, result, scratch / "rivals")

    def _build(self) -> None:
        folder = self._folder
        self._libraries = libraries.tuned(self._parts, self._result, folder)
        self.tuned = self._by_model(self._libraries)
        self._entries = [
            model_in_parts.save(model, [one.path for one in files], folder, number)
            for number, (model, files) in enumerate(zip(self._models, self.tuned, strict=True), 1)
        ]

    @property
    def flow(self) -> Flow:
        """The parts of the first set of input shapes."""
        return self._models[0].flow

    def _by_model(self, of_parts: Sequence[_Item]) -> list[list[_Item]]:
        """One item for each library, by the set of input shapes."""
        items = iter(of_parts)
        return [[next(items) for _ in model.lowered] for model in self._models]

    def choose(self, cores: tuple[int, ...]) -> None:
        """Compile again where a rival is faster inside of the model."""
        parts, tuned, scratch = self._parts, self._libraries, self._scratch
        if model_choice.choose(parts, self._result, tuned, self._rivals, cores, scratch):
            self._build()

    def measure(self, timers: _Timers) -> list[WholeModelTimes]:
        """The times of each set of input shapes."""
        return [self._measure(number, timers.of(number)) for number in range(len(self._models))]

    def _measure(self, number: int, timer: WholeModelTimer) -> WholeModelTimes:
        model, entry, plain = self._models[number], self._entries[number], self.untuned[number]

        def untuned() -> Entry:
            return model_in_parts.with_libraries(
                entry, [one.library() for one in plain], self._folder
            )

        return timer.measure(
            untuned,
            model_in_parts.with_libraries(
                entry, [one.path for one in self.tuned[number]], self._folder
            ),
            times_untuned=all(one.is_timed for one in plain),
            repeatable=model.flow.repeatable,
        )

    def write_runners(self) -> None:
        """Write the programs that run the libraries."""
        source, target = self._models[0].source, self._result.target
        framework = next((m.flow.framework for m in self._models if not m.is_whole), "")
        whole_model.write_runners(self._folder, source, self._entries, target, framework)


def _result(
    result: Result,
    build: _Build,
    times: WholeModelTimes | None,
    started_at: float,
    out: Path | None,
) -> TuneResult:
    """The result with the times of the first set of input shapes."""
    if times is None:
        document = result.summary(time.monotonic() - started_at, None)
        return TuneResult(document | reports.left_to_framework(build.flow), out, None, False)
    if is_sum := times.untuned_ms is None:
        times = replace(times, untuned_ms=sum(one.sum_ms for one in build.untuned[0]))
    document = result.summary(time.monotonic() - started_at, (times, build.tuned[0]))
    document |= reports.left_to_framework(build.flow)
    limits = tuple(result.shares.get(row.chosen.id, (0.0, ""))[1] for row in result.rows())
    slowed = _slowed(result.states)
    return TuneResult(document, out, times.pytorch_ms, False, limits, slowed, is_sum)


def _slowed(states: list[TaskState]) -> float:
    """The share of this job's outcomes during which the machine was slow."""
    own = [record.outcome for state in states for record in state.own if record.outcome.ok]
    return sum(outcome.drift > _SLOWED for outcome in own) / max(1, len(own))


def _shares(
    result: Result, target: TargetInfo, cores: tuple[int, ...], state_dir: Path, timers: _Timers
) -> dict[str, tuple[float, str]]:
    """The share of the roofline by the ids of the chosen tasks, and which limit that is."""
    rows = result.rows()
    if target.device != "cpu" or not rows:
        return {}

    def measured() -> Roofline:
        timer = timers.first
        return timer.roofline(target) if timer else measure_roofline(target, cores)

    roofline = kept_roofline(state_dir / "references", target, measured)
    return {r.chosen.id: roofline.share(traffic(r.chosen), r.seconds) for r in rows}


def _version(states: list[TaskState]) -> int:
    """Return the newest checkpoint that wrote candidates of these tasks."""
    return max((r.version for s in states for r in s.own), default=0)


def _reserved_slot(state_dir: Path, cores: tuple[int, ...]) -> AbstractContextManager[None]:
    """Reserve the run cores for this process: candidates of other jobs wait until the end."""
    lock = slot_lock(state_dir / "references", cores)
    lock.parent.mkdir(parents=True, exist_ok=True)
    return exclusively(lock)
