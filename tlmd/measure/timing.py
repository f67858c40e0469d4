"""How often to run a program: short repeats, an early stop, more repeats near the incumbent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_REPEAT_S = 2e-3  # one repeat lasts at least this long, so that the clock and its call do not count
_HOPELESS = (10.0, 3.0, 1.3)  # slower than the incumbent after warm-up, first repeat, third repeat
_WARM_UP_COUNTS_S = 0.02  # page faults do not matter for a warm-up run at least this long
_CLOSE = 1.15  # within this of the incumbent a candidate is measured again
_MAX_NUMBER = 100_000


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds per run, one per repeat; ``slow``: stopped early; ``runs``: how many runs in all."""

    seconds: tuple[float, ...]
    slow: bool
    runs: int


Evaluate = Callable[[int, int], Sequence[float]]
"""``evaluate(number, repeat)`` -> seconds per run of each repeat, after one discarded run."""


def sample(
    evaluate: Evaluate,
    first_s: float,
    *,
    incumbent_s: float | None = None,
    repeats: int = 7,
    budget_s: float = 3.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Time a program whose first (warm-up) run took `first_s` seconds, within `budget_s` seconds.

    Repeats come in chunks of 1, 2 and the rest, which is where it may stop early; each chunk costs
    one discarded run. A program too slow for the budget keeps its warm-up run as its only sample.
    """
    deadline = clock() + budget_s
    best = incumbent_s or math.inf
    if first_s > budget_s or (first_s > _WARM_UP_COUNTS_S and first_s > _HOPELESS[0] * best):
        return Samples((first_s,), first_s > _HOPELESS[0] * best, 1)
    once, runs = first_s, 1
    if once < _REPEAT_S:  # the first run paid for page faults
        once, runs = min(once, evaluate(1, 1)[0]), 3
    seconds: list[float] = []
    for chunk, hopeless in ((1, _HOPELESS[1]), (2, _HOPELESS[2]), (repeats - 3, _HOPELESS[2])):
        number = _number(once)
        count = _affordable(min(chunk, repeats - len(seconds)), number, once, deadline - clock())
        if count <= 0:
            break
        seconds += evaluate(number, count)
        runs += number * count + 1
        once = min(seconds)
        if once > hopeless * best:
            return Samples(tuple(seconds), True, runs)
    if once <= _CLOSE * best < math.inf:
        number = _number(once)
        count = _affordable(repeats, number, once, deadline - clock())
        if count > 0:
            seconds += evaluate(number, count)
            runs += number * count + 1
    return Samples(tuple(seconds) or (first_s,), False, runs)


def _number(once: float) -> int:
    """Runs per repeat of a program that takes `once` seconds."""
    return max(1, min(_MAX_NUMBER, math.ceil(_REPEAT_S / max(once, 1e-9))))


def _affordable(count: int, number: int, once: float, left_s: float) -> int:
    """How many of `count` repeats fit into `left_s` seconds, the discarded run included."""
    return min(count, int((left_s - once) / (number * once)))
