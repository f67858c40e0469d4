"""Finalists of one task in one child: built one after the other, timed in interleaved rounds."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

from tlmd.measure import finals
from tlmd.measure.program import Program
from tlmd.measure.protocol import Final, Stage, send
from tlmd.measure.rig import Environment, Stopwatch, build, outcome_of, slot
from tlmd.measure.timing import Samples
from tlmd.space.schedule import build_module
from tlmd.space.space import TaskSpace
from tlmd.types import Outcome


class Race:
    """Verified candidates against each other; the order of their times is that of the pairs."""

    def __init__(
        self,
        env: Environment,
        work: Final,
        program: Program,
        inputs: list[Any] | None,
        report_fd: int,
        watch: Stopwatch,
    ) -> None:
        self._env = env
        self._work = work
        self._program = program
        self._inputs = inputs
        self._report_fd = report_fd
        self._watch = watch
        self.built = False

    def measure(self) -> tuple[Outcome, ...]:
        """One outcome per candidate. Raises whatever went wrong."""
        space = TaskSpace(self._program.task)
        modules = [
            build_module(self._program.module, space.trace_json(c), self._env.target)
            for c in self._work.candidates
        ]
        self._watch.lap("schedule")
        programs = [build(self._env, self._program, module) for module in modules]
        self.built = True
        self._watch.lap("build")
        reference = self._env.store.get(self._program.task_id)
        for program in programs:
            program.allocate(self._inputs, reference.positive if reference else False)
        self._watch.lap("allocate")
        send(self._report_fd, Stage("waiting"))
        with slot(self._env):
            self._watch.lap("wait")
            send(self._report_fd, Stage("running"))
            first = [program.first_run()[0] for program in programs]
            found = finals.interleave(
                [program.run for program in programs],
                self._env.drift,
                first,
                self._env.setup.limits.budget_s * len(programs),
            )
            self._watch.lap("run")
        return _outcomes(found)


def _outcomes(found: list[Samples]) -> tuple[Outcome, ...]:
    """The leader's time by itself, the others' by their ratio to it."""
    best = found[finals.leader(found)]
    plain = outcome_of(best.seconds, best.drifts, _swing(best), None, best.runs)
    outcomes = []
    for samples in found:
        ratio = 1.0
        if samples is not best:
            ratio = math.exp(max(0.0, finals.difference(samples, best)[0]))
        outcomes.append(
            replace(
                plain,
                samples=tuple(samples.seconds),
                drift=statistics.fmean(samples.drifts),
                verified=True,  # or it would be no finalist
                raced=True,
                estimate=plain.estimate * ratio,
                low=plain.low * ratio,
                high=plain.high * ratio,
            )
        )
    return tuple(outcomes)


def _swing(samples: Samples) -> float:
    return max(samples.drifts) / min(samples.drifts)
