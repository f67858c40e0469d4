"""One candidate on its way through the stages: build, wait for the slot, time, check."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import Any

import numpy as np
import tvm

from tlmd.measure import timing, verify
from tlmd.measure.energy import EnergyMeter
from tlmd.measure.executable import Executable
from tlmd.measure.protocol import NO_REFERENCE, Stage, Work, send
from tlmd.measure.rig import Workplace, outcome_of, swing
from tlmd.space.schedule import build_module
from tlmd.types import Outcome, Status

_NONSENSE = 0.10  # share of NaN and infinity in the reference from which positive inputs are tried
_BASELINE_REPEATS, _BASELINE_S = 3, 0.2

FirstRun = tuple[float, list[Any]]
"""Seconds and outputs of a program's first run."""


class Attempt:
    """One candidate on its way through the stages."""

    def __init__(self, place: Workplace, work: Work) -> None:
        self._place = place
        self._env = place.env
        self._program = place.program
        self._work = work

    def measure(self) -> tuple[Outcome, ...]:
        """The outcome of the candidate. Raises whatever went wrong."""
        reference = self._env.store.get(self._program.task_id)
        positive = reference.positive if reference else False
        (executable,) = self._place.prepare([self._schedule()], positive)
        with self._place.timing():
            first = self._first_run(executable)
            if self._work.is_baseline and reference is None:
                first, positive = self._sensible(executable, first)
            outcome, outputs = self._time(executable, first)
        send(self._place.report_fd, Stage("checking"))
        outcome = self._check(outcome, outputs, reference, positive)
        self._place.watch.lap("check")
        return (outcome,)

    def _schedule(self) -> Any:
        if not self._work.is_baseline:
            return build_module(self._program.module, self._work.trace, self._env.target)
        if self._env.setup.target.device == "cpu":
            return self._program.module
        with self._env.target:  # a GPU cannot run what is bound to no thread
            return tvm.s_tir.transform.DefaultGPUSchedule()(self._program.module)

    def _first_run(self, executable: Executable) -> FirstRun:
        switches = _forced_switches()
        seconds, outputs = executable.first_run()
        if _forced_switches() != switches and not self._work.is_baseline:  # we were preempted
            seconds = min(seconds, executable.once())
        return seconds, outputs

    def _sensible(self, executable: Executable, first: FirstRun) -> tuple[FirstRun, bool]:
        """Take positive inputs where signed ones give NaN, so that comparing says something."""
        arguments = [self._program.arguments[i] for i in self._program.outputs]
        bad = size = 0
        for argument, array in zip(arguments, first[1], strict=True):
            if argument.is_float:
                bad += array.size - int(np.isfinite(verify.widen(array)).sum())
                size += array.size
        if bad <= _NONSENSE * size:
            return first, False
        executable.allocate(None, positive=True)
        return self._first_run(executable), True

    def _time(self, executable: Executable, first: FirstRun) -> tuple[Outcome, list[Any] | None]:
        limits, read = self._env.setup.limits, self._env.read
        before = read()
        if self._work.is_baseline:  # may take seconds, and nobody needs to know to the percent
            race = timing.Race(repeats=_BASELINE_REPEATS, budget_s=_BASELINE_S)
        else:
            race = timing.Race(self._work.incumbent_s, limits.repeats, limits.budget_s)
        meter = EnergyMeter()
        meter.start()
        found = timing.sample(executable.run, read, first[0], race)
        joules = meter.stop()
        outcome = outcome_of(found, swing([before, *found.readings]), joules)
        return outcome, None if found.slow else first[1]

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
            if not self._work.is_baseline:
                return replace(outcome, detail=NO_REFERENCE)
            self._env.store.put(self._program.task_id, outputs, positive)
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
            )
            right, worst = right and ok, max(worst, error)
        if right:
            return replace(outcome, verified=True, max_abs_err=worst)
        detail = f"outputs differ from the unscheduled program's by up to {worst:.3g}"
        return replace(outcome, status=Status.WRONG_OUTPUT, detail=detail, max_abs_err=worst)


def _forced_switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
