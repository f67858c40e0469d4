"""Times the finalists of a task in interleaved rounds, and drops those that are clearly slower.

A disturbance of the machine within a round affects all finalists alike. So their ratios within
rounds show which is faster after fewer rounds than their times do (duet benchmarking, arXiv
2001.05811).
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tlmd.measure.timing.noise import Reading
from tlmd.measure.timing.timing import Run, Samples, per_repeat

_MIN_ROUNDS, _MAX_ROUNDS = 6, 40
_CONFIDENCE = 2.6  # standard errors: one-sided 99.5 %, because several are compared
_EQUAL = 0.004  # a difference that does not matter
_CLIP = 3.0  # spreads: a ratio further away is clipped


@dataclass
class _Finalist:
    run: Run
    once: float
    samples: Samples = field(default_factory=Samples)
    alive: bool = True


def interleave(
    runs: Sequence[Run],
    read: Callable[[], Reading],
    first_s: Sequence[float],
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Samples]:
    """The samples of each program, round by round, within about `budget_s` seconds.

    `first_s` are the seconds of their warm-up runs. A program is dropped once it is slower than the
    leader with confidence. Timing stops when one program is left, or when all that are left are
    equally fast.
    """
    finalists = [_Finalist(run, once) for run, once in zip(runs, first_s, strict=True)]
    rng, deadline = random.Random(0), clock() + budget_s
    for number in range(_MAX_ROUNDS):
        alive = [r for r in finalists if r.alive]
        rng.shuffle(alive)
        before = read()
        for finalist in alive:
            count = per_repeat(finalist.once)
            seconds = finalist.run(count)
            finalist.samples.seconds.append(seconds)
            finalist.samples.readings.append(before)
            finalist.samples.runs += count
            finalist.once = min(finalist.once, seconds)
        if number + 1 >= _MIN_ROUNDS and _drop(alive):
            break
        if clock() > deadline:
            break
    return [r.samples for r in finalists]


def _drop(alive: list[_Finalist]) -> bool:
    """Drop those that are slower; True where the order of the others is clear or irrelevant."""
    first = leader([r.samples for r in alive])
    settled = True
    for finalist in alive:
        if finalist is alive[first]:
            continue
        middle, error = difference(finalist.samples, alive[first].samples)
        if middle - _CONFIDENCE * error > 0:
            finalist.alive = False
        elif abs(middle) + _CONFIDENCE * error > _EQUAL:
            settled = False
    return settled


def leader(samples: Sequence[Samples]) -> int:
    """Index of the fastest of those that were never dropped."""
    rounds = max(len(f.seconds) for f in samples)
    stayed = [i for i, f in enumerate(samples) if len(f.seconds) == rounds]
    return min(stayed, key=lambda i: statistics.median(samples[i].seconds))


def difference(one: Samples, other: Samples) -> tuple[float, float]:
    """How much slower `one` is, as a share, in the rounds that both ran; and its standard error."""
    ratios = [math.log(a / b) for a, b in zip(one.seconds, other.seconds, strict=False)]
    middle = statistics.median(ratios)
    scale = 1.4826 * statistics.median(abs(r - middle) for r in ratios) + 1e-9
    kept = [min(max(r, middle - _CLIP * scale), middle + _CLIP * scale) for r in ratios]
    spread = statistics.stdev(kept) if len(kept) > 1 else math.inf
    return statistics.fmean(kept), max(spread, 1e-4) / math.sqrt(len(kept))
