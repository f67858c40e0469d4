"""One candidate in one child: build it, wait for the slot, time it, check its outputs."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import Any

import numpy as np

from tlmd.data.types import Outcome, Status
from tlmd.measure.protocol import NO_REFERENCE, MeasureRequest
from tlmd.measure.server import verify
from tlmd.measure.server.child_context import ChildContext, LoadedProgram, outcome_of, speed_change
from tlmd.measure.server.executable import Executable
from tlmd.measure.timing import timing
from tlmd.measure.timing.energy import EnergyMeter
from tlmd.space import gpu_default
from tlmd.space.apply_trace import build_module

_NOT_FINITE = 0.10  # share of NaN and infinity in the reference above which inputs become positive
_BASELINE_REPEATS, _BASELINE_S = 3, 0.2

FirstRun = tuple[float, list[Any]]
"""Seconds and outputs of a program's first run."""


class CandidateRun:
    """Measures one candidate, or the unscheduled program of a task."""

    def __init__(self, context: ChildContext, request: MeasureRequest) -> None:
        self._is_baseline = request.is_baseline
        (loaded,) = context.loaded
        if request.is_baseline and loaded.program.direct is not None:
            loaded = LoadedProgram(loaded.program.direct)
        self._context = context
        self._server = context.server
        self._loaded = loaded
        self._program = loaded.program
        self._candidate = request.inputs[0] if request.inputs else None

    def measure(self) -> tuple[Outcome]:
        """The outcome of the candidate. Raises the error of the stage that failed."""
        reference = self._server.store.get(self._program.reference_id)
        positive = reference.positive if reference else False
        (executable,) = self._context.prepare([(self._loaded, self._schedule())], positive)
        with self._context.timing():
            first = self._first_run(executable)
            if self._is_baseline and reference is None:
                first, positive = self._choose_inputs(executable, first)
            outcome, outputs = self._time(executable, first)
        outcome = self._check(outcome, outputs, reference, positive)
        self._context.stopwatch.lap("check")
        return (outcome,)

    def _schedule(self) -> Any:
        if self._candidate is not None:
            return build_module(self._program.module, self._candidate.trace, self._server.target)
        if self._server.setup.target.device == "cpu":
            return self._program.module
        # A GPU runs only loops that are bound to threads.
        return gpu_default.scheduled(self._program.module, self._server.target)

    def _first_run(self, executable: Executable) -> FirstRun:
        switches = _forced_switches()
        seconds, outputs = executable.first_run()
        if _forced_switches() != switches and not self._is_baseline:  # another process interrupted
            seconds = min(seconds, executable.once())
        return seconds, outputs

    def _choose_inputs(self, executable: Executable, first: FirstRun) -> tuple[FirstRun, bool]:
        """Use positive inputs where signed ones give NaN: equal NaNs would prove nothing."""
        arguments = [self._program.arguments[i] for i in self._program.outputs]
        bad = size = 0
        for argument, array in zip(arguments, first[1], strict=True):
            if argument.is_float:
                bad += array.size - int(np.isfinite(verify.widen(array)).sum())
                size += array.size
        if bad <= _NOT_FINITE * size:
            return first, False
        executable.allocate(None, positive=True)
        return self._first_run(executable), True

    def _time(self, executable: Executable, first: FirstRun) -> tuple[Outcome, list[Any] | None]:
        """The outcome, and the outputs to check; None where a slow program needs no check."""
        config, read = self._server.config, self._server.read
        before = read()
        if self._candidate is None:  # it may take seconds, and its time need not be exact
            rule = timing.StoppingRule(repeats=_BASELINE_REPEATS, budget_s=_BASELINE_S)
        else:
            incumbent_s = self._candidate.incumbent_s
            least_s = self._context.least_s(self._program)
            rule = timing.StoppingRule(incumbent_s, config.repeats, config.budget, least_s)
        meter = EnergyMeter()
        meter.start()
        samples = timing.sample(executable.run, read, first[0], rule)
        joules = meter.stop()
        outcome = outcome_of(samples, speed_change([before, *samples.readings]), joules)
        return outcome, None if samples.slow else first[1]

    def _check(
        self,
        outcome: Outcome,
        outputs: list[Any] | None,
        reference: verify.Reference | None,
        positive: bool,
    ) -> Outcome:
        """Compare with the reference; the first baseline becomes the reference."""
        if outputs is None:
            return outcome
        if reference is None:
            if not self._is_baseline:
                return replace(outcome, detail=NO_REFERENCE)
            self._server.store.put(self._program.reference_id, outputs, positive)
            return replace(outcome, verified=True, max_abs_err=0.0)
        worst, right = 0.0, len(outputs) == len(reference.outputs)
        for index, got, want in zip(
            self._program.outputs, outputs, reference.outputs, strict=False
        ):
            ok, error = verify.compare(
                verify.widen(got),
                want,
                self._program.arguments[index].dtype,
                self._program.reduction,
                self._program.has_floats,
                self._program.multiplied,
                self._program.has_steps,
            )
            right, worst = right and ok, max(worst, error)
        if right:
            return replace(outcome, verified=True, max_abs_err=worst)
        detail = f"outputs differ from the unscheduled program's by up to {worst:.3g}"
        return replace(outcome, status=Status.WRONG_OUTPUT, detail=detail, max_abs_err=worst)


def _forced_switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
