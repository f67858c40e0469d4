"""From clocked repeats to a time: drift-corrected, with an interval that it lies in.

Whatever disturbs a program delays it, so the fastest repeat is nearest to the truth (Chen & Revels,
arXiv 1608.04295) and what the others take longer tells how near: delays are taken as exponential,
for which the minimum's excess has a known distribution. The machine's own speed is divided out
before, repeat by repeat, by a reference kernel that was timed around each of them; its readings are
delayed by the same accidents, so the fastest of a moment counts. Dividing by a delayed one would
turn an accident into luck, which a minimum then picks.

A neighbour on the same core of a shared machine leaves less of its caches. That slows some programs
by half and others not at all, so how slow the caches are now cannot be divided out: the time is the
middle of what it may have cost, and the interval holds both ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
NOISY = 0.05  # half-width, as a share, from which a time is called noisy
# Known of the delays before anything is measured: as if so many repeats had come in with so much.
_PRIOR, _DELAY = 2, 0.03
_REFERENCE = 0.006  # how far one reading of the reference kernel is off, as a share
_MOMENT = 3  # repeats to either side that the machine had the same speed for
_FELT = 0.5  # half of what slow caches may cost: from nothing (a GEMM) to all (a convolution)
_WORST = 1.5  # more they do not cost, however slow the probe is


@dataclass(frozen=True, slots=True)
class Reading:
    """How slow the machine is: ``core`` 1.0 as at the start, ``caches`` 1.0 as at their best."""

    core: float = 1.0
    caches: float = 1.0


def fastest_of(readings: Sequence[Reading]) -> Reading:
    """What several readings of one moment say: accidents only ever delay one."""
    return Reading(min(r.core for r in readings), min(r.caches for r in readings))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Drift-corrected seconds; the true value lies in ``low .. high`` with `CONFIDENCE`.

    ``crowded`` is what crowded caches may have cost, as a factor; it is part of the interval.
    """

    seconds: float
    low: float
    high: float
    crowded: float = 1.0

    @property
    def spread(self) -> float:
        """Half the interval's width as a share of the time."""
        return 0.5 * math.log(self.high / self.low)

    @property
    def delays(self) -> float:
        """What of the spread more repeats at the same moment may take away."""
        return self.spread - 0.5 * math.log(self.crowded)


def estimate(samples: Sequence[float], readings: Sequence[Reading]) -> Estimate:
    """The time behind `samples` (seconds per run, at least one).

    `readings` says for each how slow the machine was then. The interval's low end is the F(2, 2k)
    quantile of the exponential model; its middle allows for what the fastest of so few is still
    too slow. Slow caches widen the interval to both sides.
    """
    count = len(samples)
    settled = _settled(readings)
    corrected = [s / (r.core * r.caches**_FELT) for s, r in zip(samples, settled, strict=True)]
    fastest = min(corrected)
    crowded = settled[corrected.index(fastest)].caches
    known = _PRIOR + count - 1
    delay = (_PRIOR * _DELAY + sum(c / fastest - 1 for c in corrected)) / known
    quantile = known * ((1 - CONFIDENCE) ** (-1 / known) - 1)
    slack = 2 * _REFERENCE / math.sqrt(count)
    low = fastest * (1 - min(quantile * delay / count, 0.9)) * (1 - slack)
    middle, high = fastest * (1 - min(delay / count, 0.5)), fastest * (1 + slack)
    return Estimate(middle, low / crowded ** (1 - _FELT), high * crowded**_FELT, crowded)


def _settled(readings: Sequence[Reading]) -> list[Reading]:
    """For each repeat the fastest readings of its moment, within reason."""
    moments = (readings[max(0, i - _MOMENT) : i + _MOMENT + 1] for i in range(len(readings)))
    settled = map(fastest_of, moments)
    return [Reading(r.core, min(_WORST, r.caches)) for r in settled]
