"""Finalists of a task against each other: timed in interleaved rounds, dropped when they have lost.

Whatever the machine does within a round it does to all of them, so the ratios within rounds tell
which is faster long before their times do (duet benchmarking, arXiv 2001.05811).
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tlmd.measure.noise import Reading
from tlmd.measure.timing import Run, Samples, per_repeat

_LEAST, _MOST = 6, 40  # rounds
_CONFIDENCE = 2.6  # standard errors: one-sided 99.5 %, as several are compared
_EQUAL = 0.004  # a difference that does not matter
_CLIP = 3.0  # spreads beyond which a round's ratio is an accident


@dataclass
class _Racer:
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

    `first_s` are the seconds of their warm-up runs. A program sits out once it is slower than the
    leader with confidence; it is over when one is left, or when all that are left are equal.
    """
    racers = [_Racer(run, once) for run, once in zip(runs, first_s, strict=True)]
    rng, deadline = random.Random(0), clock() + budget_s
    for number in range(_MOST):
        alive = [r for r in racers if r.alive]
        rng.shuffle(alive)
        before = read()
        for racer in alive:
            count = per_repeat(racer.once)
            seconds = racer.run(count)
            racer.samples.seconds.append(seconds)
            racer.samples.readings.append(before)
            racer.samples.runs += count
            racer.once = min(racer.once, seconds)
        if number + 1 >= _LEAST and _drop(alive):
            break
        if clock() > deadline:
            break
    return [r.samples for r in racers]


def _drop(alive: list[_Racer]) -> bool:
    """Take out who has lost; whether the order of the others is settled or does not matter."""
    first = leader([r.samples for r in alive])
    settled = True
    for racer in alive:
        if racer is alive[first]:
            continue
        middle, error = difference(racer.samples, alive[first].samples)
        if middle - _CONFIDENCE * error > 0:
            racer.alive = False
        elif abs(middle) + _CONFIDENCE * error > _EQUAL:
            settled = False
    return settled


def leader(found: Sequence[Samples]) -> int:
    """Which of those that were never dropped was fastest."""
    rounds = max(len(f.seconds) for f in found)
    stayed = [i for i, f in enumerate(found) if len(f.seconds) == rounds]
    return min(stayed, key=lambda i: statistics.median(found[i].seconds))


def difference(one: Samples, other: Samples) -> tuple[float, float]:
    """How much slower `one` is, as a share, in the rounds both ran, and its standard error."""
    ratios = [math.log(a / b) for a, b in zip(one.seconds, other.seconds, strict=False)]
    middle = statistics.median(ratios)
    scale = 1.4826 * statistics.median(abs(r - middle) for r in ratios) + 1e-9
    kept = [min(max(r, middle - _CLIP * scale), middle + _CLIP * scale) for r in ratios]
    spread = statistics.stdev(kept) if len(kept) > 1 else math.inf
    return statistics.fmean(kept), max(spread, 1e-4) / math.sqrt(len(kept))
