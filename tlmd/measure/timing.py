"""How often to run a program: few short repeats, more only while the race is open."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tlmd.measure.noise import Estimate, Reading, estimate, fastest_of

REPEAT_S = 2e-3  # one repeat lasts at least this long, so that the clock and its call do not count
_HOPELESS = 3.0  # a warm-up run so much slower than the incumbent is enough
_WARM_UP_COUNTS_S = 5e-3  # page faults do not matter for a warm-up run at least this long
_LONG_S = 20e-3  # one run tells as much as several short ones
_FIRST = 3  # short repeats in place of the first one: what disturbs its beginning is in one of them
_SETTLED = 0.01  # half-width of the interval by delays from which more repeats tell nothing new
_CONTENDER = 4  # times as many repeats for one that may or may not beat the incumbent
_MAX_NUMBER = 100_000


@dataclass
class Samples:
    """Seconds per run and how slow the machine was, one per repeat; ``runs``: runs in all.

    ``slow``: given up because it is slower than the incumbent.
    """

    seconds: list[float] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    slow: bool = False
    runs: int = 0

    @property
    def estimate(self) -> Estimate:
        return estimate(self.seconds, self.readings)

    @property
    def drift(self) -> float:
        """How slow the core was on average."""
        return statistics.fmean(r.core for r in self.readings)


Run = Callable[[int], float]
"""``run(number)`` -> mean seconds of so many runs in a row."""


@dataclass(frozen=True)
class Race:
    """Against whom and for how long: `repeats` where nothing is to be decided, within `budget_s`.

    ``incumbent_s`` is drift-corrected; None where the task has no program yet.
    """

    incumbent_s: float | None = None
    repeats: int = 7
    budget_s: float = 3.0

    def decided(self, found: Samples) -> bool:
        """Whether further repeats are not worth their time; marks what lost as slow."""
        now, count = found.estimate, len(found.seconds)
        if self.incumbent_s is not None:
            if now.low > self.incumbent_s:
                found.slow = True
                return True
            if now.high >= self.incumbent_s:  # the order is open
                settled = count >= self.repeats and now.delays <= _SETTLED
                return settled or count >= _CONTENDER * self.repeats
        return count >= self.repeats


def sample(
    run: Run,
    read: Callable[[], Reading],
    first_s: float,
    race: Race,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Time a program whose first (warm-up) run took `first_s` seconds.

    `read` tells how slow the machine is now and is asked around every few repeats. With an
    incumbent the program is given up as soon as its interval lies above the incumbent's time, after
    three short repeats where it is a tenth slower (one where a run takes long); without, or when it
    is clearly faster, it gets the planned repeats; in between more, until the interval is narrow.
    One too slow for the budget keeps its warm-up run as its only sample.
    """
    deadline = clock() + race.budget_s
    before = read()
    hopeless = race.incumbent_s is not None and first_s > _HOPELESS * race.incumbent_s * before.core
    if first_s > race.budget_s or (hopeless and first_s > _WARM_UP_COUNTS_S):
        return Samples([first_s], [before], hopeless, 1)
    once, found = first_s, Samples(runs=1)
    if once < REPEAT_S:  # the first run paid for page faults
        once = min(once, run(1))
        found.runs += 1
    while not found.seconds or not race.decided(found):
        number, count = _plan(once, not found.seconds)
        left = int((deadline - clock()) / (number * once))
        chunk = [run(number) for _ in range(min(count, left))]
        if not chunk:
            break
        after = read()
        found.seconds += chunk
        found.readings += [fastest_of((before, after))] * len(chunk)
        found.runs += number * len(chunk)
        before, once = after, min(found.seconds)
    return found if found.seconds else Samples([first_s], [before], False, found.runs)


def _plan(once: float, first: bool) -> tuple[int, int]:
    """Runs per repeat, and repeats before the reference is asked again."""
    if not first:
        return per_repeat(once), 2
    return (1, 1) if once >= _LONG_S else (per_repeat(once, REPEAT_S / _FIRST), _FIRST)


def per_repeat(once: float, least_s: float = REPEAT_S) -> int:
    """Runs per repeat of a program that takes `once` seconds."""
    return max(1, min(_MAX_NUMBER, math.ceil(least_s / max(once, 1e-9))))
