"""Finalists of one computation in one child: built one by one, timed in interleaved rounds.

They may be programs of several alternatives, whose weights have other layouts.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tlmd.data.types import Outcome
from tlmd.measure.protocol import MeasureRequest
from tlmd.measure.server.child_context import ChildContext, outcome_of, speed_change
from tlmd.measure.timing import interleaving
from tlmd.measure.timing.timing import Samples
from tlmd.space.apply_trace import build_module


class FinalistComparison:
    """Times verified candidates against each other. It does not verify them again.

    The order of their times is the order that the paired rounds show.
    """

    def __init__(self, context: ChildContext, request: MeasureRequest) -> None:
        self._context = context
        self._request = request

    def measure(self) -> tuple[Outcome, ...]:
        """One outcome per finalist. Raises the error of the first one that fails."""
        server, programs = self._context.server, [p.program for p in self._context.loaded]
        modules = [
            build_module(program.module, finalist.trace, server.target)
            for program, finalist in zip(programs, self._request.inputs, strict=True)
        ]
        reference = server.store.get(programs[0].reference_id)
        executables = self._context.prepare(
            list(zip(self._context.loaded, modules, strict=True)),
            reference.positive if reference else False,
        )
        with self._context.timing():
            first_s = [executable.first_run()[0] for executable in executables]
            budget_s = server.config.budget * len(executables)
            samples = interleaving.interleave(
                [executable.run for executable in executables], server.read, first_s, budget_s
            )
        return _outcomes(samples, [self._context.least_s(program) for program in programs])


def _outcomes(samples: list[Samples], least_s: list[float]) -> tuple[Outcome, ...]:
    """The leader has its own time; the others have the leader's times their ratio to it."""
    first = interleaving.leader(samples)
    best = samples[first]
    limited = replace(best, least_s=least_s[first])
    leader = outcome_of(limited, speed_change(best.readings), None)
    outcomes = []
    for finalist in samples:
        ratio = 1.0
        if finalist is not best:
            ratio = math.exp(max(0.0, interleaving.difference(finalist, best)[0]))
        outcomes.append(
            replace(
                leader,
                samples=tuple(finalist.seconds),
                drift=finalist.drift,
                compared=True,
                estimate=leader.estimate * ratio,
                low=leader.low * ratio,
                high=leader.high * ratio,
            )
        )
    return tuple(outcomes)
