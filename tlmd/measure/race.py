"""Finalists of one task in one child: built one after the other, timed in interleaved rounds."""

from __future__ import annotations

import math
from dataclasses import replace

from tlmd.measure import finals
from tlmd.measure.protocol import Final
from tlmd.measure.rig import Workplace, outcome_of, swing
from tlmd.measure.timing import Samples
from tlmd.space.schedule import build_module
from tlmd.space.space import TaskSpace
from tlmd.types import Outcome


class Race:
    """Candidates against each other; the order of their times is that of the pairs.

    Nothing is verified: that is known of finalists.
    """

    def __init__(self, place: Workplace, work: Final) -> None:
        self._place = place
        self._work = work

    def measure(self) -> tuple[Outcome, ...]:
        """One outcome per candidate. Raises whatever went wrong."""
        env, program = self._place.env, self._place.program
        space = TaskSpace(program.task)
        modules = [
            build_module(program.module, space.trace_json(c), env.target)
            for c in self._work.candidates
        ]
        reference = env.store.get(program.task_id)
        racers = self._place.prepare(modules, reference.positive if reference else False)
        with self._place.timing():
            first = [racer.first_run()[0] for racer in racers]
            budget_s = env.setup.limits.budget_s * len(racers)
            found = finals.interleave([r.run for r in racers], env.read, first, budget_s)
        return _outcomes(found)


def _outcomes(found: list[Samples]) -> tuple[Outcome, ...]:
    """The leader's time by itself, the others' by their ratio to it."""
    best = found[finals.leader(found)]
    plain = outcome_of(best, swing(best.readings), None)
    outcomes = []
    for samples in found:
        ratio = 1.0
        if samples is not best:
            ratio = math.exp(max(0.0, finals.difference(samples, best)[0]))
        outcomes.append(
            replace(
                plain,
                samples=tuple(samples.seconds),
                drift=samples.drift,
                raced=True,
                estimate=plain.estimate * ratio,
                low=plain.low * ratio,
                high=plain.high * ratio,
            )
        )
    return tuple(outcomes)
