"""How often to run a program: few short repeats, more only while it may still be the fastest."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tlmd.data.config import MeasureConfig
from tlmd.measure.timing.noise import Estimate, Reading, estimate, fastest_of

REPEAT_S = 2e-3  # a repeat lasts at least this long, so that reading the clock does not matter
_HOPELESS = 3.0  # times the incumbent: a warm-up run that slow is enough
_WARM_UP_COUNTS_S = 5e-3  # page faults do not matter for a warm-up run at least this long
_LONG_S = 20e-3  # one run tells as much as several short ones
_FIRST = 3  # short repeats instead of the first one, because its beginning is often disturbed
_SETTLED = 0.01  # more repeats do not help once delays widen the interval by less than this
_CONTENDER = 4  # times the planned repeats, for a program that may or may not beat the incumbent
_MAX_NUMBER = 100_000


@dataclass
class Samples:
    """The timed repeats of one program."""

    seconds: list[float] = field(default_factory=list)
    """Seconds per run, one entry per repeat."""
    readings: list[Reading] = field(default_factory=list)
    """How slow the machine was during each repeat."""
    slow: bool = False
    """Stopped early, because the program is slower than the incumbent."""
    runs: int = 0
    """All runs, warm-up included."""
    least_s: float = 0.0
    """As in `noise.estimate`."""

    @property
    def estimate(self) -> Estimate:
        return estimate(self.seconds, self.readings, self.least_s)

    @property
    def drift(self) -> float:
        """How slow the core was on average, relative to a quiet machine."""
        return statistics.fmean(r.core for r in self.readings)


Run = Callable[[int], float]
"""``run(number)`` -> mean seconds of `number` runs in a row."""


@dataclass(frozen=True)
class StoppingRule:
    """When to stop timing a program."""

    incumbent_s: float | None = None
    """Drift-corrected seconds of the best program so far; None where there is none."""
    repeats: int = MeasureConfig().repeats
    """Repeats of a program that is clearly faster, or that has no incumbent."""
    budget_s: float = MeasureConfig().budget
    """Seconds for all repeats."""
    least_s: float = 0.0
    """As in `noise.estimate`."""

    def is_decided(self, samples: Samples) -> bool:
        """Whether more repeats are not worth their time; marks a program that lost as slow."""
        now, count = samples.estimate, len(samples.seconds)
        if self.incumbent_s is not None:
            if now.low > self.incumbent_s:
                samples.slow = True
                return True
            if now.high >= self.incumbent_s:  # the order is open
                settled = count >= self.repeats and now.delays <= _SETTLED
                return settled or count >= _CONTENDER * self.repeats
        return count >= self.repeats


def sample(
    run: Run,
    read: Callable[[], Reading],
    first_s: float,
    rule: StoppingRule,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Time a program whose first (warm-up) run took `first_s` seconds.

    `read` measures how slow the machine is; it is called before and after every few repeats. With
    an incumbent, timing stops as soon as the program's interval is above the incumbent's time:
    after three short repeats if it is a tenth slower, after one if a run takes long. Without an
    incumbent, or if the program is clearly faster, it gets the planned repeats. If it may or may
    not be faster, it gets more repeats until the interval is narrow. A program that is too slow for
    the budget has its warm-up run as its only sample.
    """
    deadline = clock() + rule.budget_s
    before = read()
    hopeless = rule.incumbent_s is not None and first_s > _HOPELESS * rule.incumbent_s * before.core
    if first_s > rule.budget_s or (hopeless and first_s > _WARM_UP_COUNTS_S):
        return Samples([first_s], [before], hopeless, 1, rule.least_s)
    once, samples = first_s, Samples(runs=1, least_s=rule.least_s)
    if once < REPEAT_S:  # the first run paid for page faults
        once = min(once, run(1))
        samples.runs += 1
    while not samples.seconds or not rule.is_decided(samples):
        number, count = _plan(once, not samples.seconds)
        left = int((deadline - clock()) / (number * once))
        chunk = [run(number) for _ in range(min(count, left))]
        if not chunk:
            break
        after = read()
        samples.seconds += chunk
        samples.readings += [fastest_of((before, after))] * len(chunk)
        samples.runs += number * len(chunk)
        before, once = after, min(samples.seconds)
    return samples if samples.seconds else replace(samples, seconds=[first_s], readings=[before])


def _plan(once: float, first: bool) -> tuple[int, int]:
    """Runs per repeat, and repeats until the reference kernel is timed again."""
    if not first:
        return per_repeat(once), 2
    return (1, 1) if once >= _LONG_S else (per_repeat(once, REPEAT_S / _FIRST), _FIRST)


def per_repeat(once: float, least_s: float = REPEAT_S) -> int:
    """Runs per repeat of a program that takes `once` seconds."""
    return max(1, min(_MAX_NUMBER, math.ceil(least_s / max(once, 1e-9))))
