"""Does a model work? Load it, lower it, compile it, and compare its outputs with the original's.

Nothing of a model is measured before it has passed here. TVM's importers are wrong for some
operators without saying so; only the comparison with the original shows it. What TVM cannot compile
as a whole, it compiles in parts (`cutting`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tlmd.data.errors import NotImportable, TlmdError
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import TargetInfo, Task
from tlmd.lowering import (
    comparison,
    cutting,
    isolation,
    lowering,
    quick_schedule,
    trial_inputs,
)
from tlmd.lowering.preparation import (
    LoweredModel,
    PreparedModel,
    lower_source,
    merged_tasks,
    whole,
)
from tlmd.models import frontends
from tlmd.models.parts.graphs import original_alone
from tlmd.models.sources import Original, first_line
from tlmd.processes import stage_times
from tlmd.space.hardware import host_cpu
from tlmd.space.hardware import target as targets

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Accepted:
    """A model that works."""

    models: tuple[PreparedModel, ...]
    """The model, prepared once for each set of input shapes."""

    error: float | None
    """Largest error of an output, relative to its largest value. None: nothing was compared."""

    seconds: dict[str, float] = field(default_factory=dict)
    """How long each stage took."""

    notes: tuple[str, ...] = ()
    """Notes for the user, one line each."""

    @property
    def tasks(self) -> list[Task]:
        """The tasks of all sets of input shapes."""
        return merged_tasks([part for model in self.models for part in model.lowered])


def accept(
    spec: ModelSpec,
    target: TargetInfo,
    on_stage: Callable[[str], None] = lambda _: None,
    after_crash: str = "",
    programs: Programs | None = None,
) -> Accepted:
    """Check that tlmd can tune a model. Raises `BadInput` and `Failed` with the cause.

    `on_stage` is called with the name of each stage when it begins. `after_crash`: how the compiler
    has ended an earlier process for this model; each part is tried in a process of its own first.
    `programs` compile what TVM compiles as a whole; by default with quick schedules.
    """
    if after_crash:
        isolation.prepare()
    stages = _TimedStages(spec.name, on_stage)
    loaded = stages.run("loading the model", lambda: frontends.originals(spec))
    errors, notes, models = list[float](), list[str](), list[PreparedModel]()
    functions: dict[str, Any] = {}
    for one, original in loaded:
        attempt = _Attempt(
            one, original, target, functions, stages, programs or QuickPrograms(target)
        )
        model, error, told = attempt.accept(after_crash)
        models.append(model)
        errors += [] if error is None else [error]
        notes += told
    notes = [*_on_tasks(models), *notes]
    if not _runs_here(target):
        notes.append("the target is not this machine's CPU: outputs were not compared")
    worst = max(errors, default=None)
    return Accepted(tuple(models), worst, stages.seconds, tuple(dict.fromkeys(notes)))


class Programs(Protocol):
    """Compiles models with a program for each task, so that their outputs can be compared."""

    def run(self, model: LoweredModel) -> comparison.Run:
        """A function that runs the compiled model."""

    def refuse(self) -> bool:
        """They gave wrong outputs, where TVM's default schedules give the right ones.

        Whether others have taken their place, whose outputs are to be compared.
        """


class QuickPrograms:
    """Programs that are made at once, for one run."""

    def __init__(self, target: TargetInfo) -> None:
        self._target = targets.tvm_target(target)

    def run(self, model: LoweredModel) -> comparison.Run:
        """A function that runs the compiled model."""
        quick = quick_schedule.scheduled(model.lowered, self._target)
        return comparison.runner(lowering.compile_model(quick, self._target).executable)

    def refuse(self) -> bool:
        """They are used for nothing else."""
        return False


class _TimedStages:
    """The stages of an acceptance and how long they take."""

    def __init__(self, name: str, on_stage: Callable[[str], None]) -> None:
        self._name, self.tell = name, on_stage
        self.seconds: dict[str, float] = {}

    def run(self, text: str, work: Callable[[], _Result]) -> _Result:
        """Do one stage. Errors of libraries become `NotImportable`."""
        self.tell(text)
        started_at = time.monotonic()
        stage = text.split(" ")[0]
        try:
            with stage_times.stage(stage):
                return work()
        except TlmdError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise NotImportable(f"{text}: TVM cannot compile {self._name} ({reason})") from error
        finally:
            seconds = self.seconds.get(stage, 0.0) + time.monotonic() - started_at
            self.seconds[stage] = round(seconds, 2)


Checked = tuple[PreparedModel, float | None, list[str]]
"""A model, the largest error of its outputs, and notes."""


@dataclass
class _Attempt:
    """One model for one set of input shapes: as a whole if TVM can do that, else in parts."""

    spec: ModelSpec
    original: Original
    target: TargetInfo
    functions: dict[str, Any]
    stages: _TimedStages
    programs: Programs

    def accept(self, after_crash: str) -> Checked:
        """Find what TVM compiles. Raises `BadInput` if the framework cannot run the model."""
        if after_crash:
            return self._in_parts(NotImportable(after_crash), isolates=True)
        try:
            return self._whole()
        except NotImportable as refusal:
            return self._in_parts(refusal, isolates=False)

    def _whole(self) -> Checked:
        """The whole model. Raises `NotImportable` if TVM cannot compile it rightly."""
        spec, target = self.spec, self.target
        source = self.stages.run("loading the model", self.original.imported)
        model = self.stages.run(
            "lowering it to tasks", lambda: lower_source(spec, source, target, self.functions)
        )
        if not _runs_here(target):
            return whole(model), None, list(source.notes)
        error, notes = self.stages.run("comparing its outputs", lambda: self._compare(model))
        return whole(model), error, [*source.notes, *notes]

    def _compare(self, model: LoweredModel) -> tuple[float | None, tuple[str, ...]]:
        """The largest relative error, and notes. Raises `NotImportable` if outputs are wrong."""
        expected, note = trial_inputs.expected(model.source)
        if not expected:
            return None, (note,)
        try:
            return comparison.largest_error(model.source, self.programs.run(model), expected), ()
        except NotImportable:
            # Whether the model is at fault or a schedule, the program without any schedule shows.
            plain = lowering.compile_model(model.lowered, targets.tvm_target(self.target))
            run = comparison.runner(plain.executable)
            error = comparison.largest_error(model.source, run, expected)
        while self.programs.refuse():
            with contextlib.suppress(NotImportable):
                run = self.programs.run(model)
                return comparison.largest_error(model.source, run, expected), ()
        return error, ()

    def _in_parts(self, refusal: NotImportable, isolates: bool) -> Checked:
        spec, original = self.spec, self.original
        source = original.unimported()
        expected, note = trial_inputs.expected(source)
        if not expected:
            # Some inputs are right for it, but nothing says which.
            alone = original_alone(spec, original)
            model = PreparedModel(spec, source, alone, (), can_be_run=False)
            return model, None, [*source.notes, note, _on_parts(model, refusal)]
        compares, examples = _runs_here(self.target), [inputs for inputs, _ in expected]
        cut = cutting.Cutting(
            spec, self.target, self.functions, compares, isolates, self.stages.tell
        )
        flow, lowered = self.stages.run(
            "finding the parts that TVM can compile", lambda: cut.parts(original, examples)
        )
        model, error = PreparedModel(spec, source, flow, lowered), None
        if compares and flow.repeatable:
            try:
                error = self.stages.run(
                    "comparing its outputs", lambda: cut.compare(model, expected)
                )
            except NotImportable as wrong:  # the graph does not compute what the model does
                refusal, alone = wrong, original_alone(spec, original)
                model = PreparedModel(spec, source, alone, ())
                error = cut.compare(model, expected)
        return model, error, [*source.notes, _on_parts(model, refusal)]


def _on_parts(model: PreparedModel, refusal: NotImportable) -> str:
    """A note on what stays in the framework, and why."""
    flow = model.flow
    if not model.lowered:
        return f"all of it stays in {flow.framework}: {refusal}"
    share = f"{100 * flow.tuned_share:.3g} % of the arithmetic is tuned"
    if not flow.stays:  # TVM compiles all of it, but not its state
        return f"its state is kept between the runs; {share}"
    return f"left to {flow.framework}: {', '.join(flow.stays)}; {share}"


def _on_tasks(models: Sequence[PreparedModel]) -> tuple[str, ...]:
    """A note on a model without tasks."""
    if any(part.tasks for model in models for part in model.lowered):
        return ()
    if any(model.lowered for model in models):
        return ("no part of it can be tuned: TVM compiles it as it is",)
    return ()


def _runs_here(target: TargetInfo) -> bool:
    return not host_cpu.missing_for(target)
