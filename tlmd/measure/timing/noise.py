"""From clocked repeats to a time: drift-corrected, with an interval that contains the true time.

Every disturbance delays a program, so the fastest repeat is nearest to the true time (Chen &
Revels, arXiv 1608.04295). How much longer the other repeats take shows how near it is: delays are
modelled as exponential, and the distribution of their minimum is known. Before that, each repeat is
divided by the machine's own speed, which a reference kernel shows around it. The same disturbances
delay the reference kernel, so the fastest reading of a moment counts: dividing by a delayed reading
would make a program look too fast, and a minimum would then pick it.

Another user of the same physical core of a shared machine leaves less of its caches. Some programs
are then slower by half and others not at all, so the effect cannot be divided out: the time is the
middle of the possible ones, and the interval contains both ends. The least time of the arithmetic
does not depend on the caches; so a good GEMM is hardly corrected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
NOISY = 0.05  # half-width, as a share, from which a time is called noisy
# Prior knowledge of the delays: as if this many repeats had been delayed by this share.
_PRIOR, _DELAY = 2, 0.03
_REFERENCE = 0.006  # error of one reading of the reference kernel, as a share
_MOMENT = 3  # repeats before and after, for which the machine's speed is taken as constant
_FELT = 0.5  # share of the caches' slowness in the time that is not arithmetic: none to all
_WORST = 1.5  # slow caches never cost more, even if the probe is slower


@dataclass(frozen=True, slots=True)
class Reading:
    """How slow the machine is.

    ``core`` is 1.0 at the speed of a quiet machine, ``caches`` 1.0 at their best speed.
    """

    core: float = 1.0
    caches: float = 1.0


def fastest_of(readings: Sequence[Reading]) -> Reading:
    """The reading of a moment with several readings: disturbances only delay, so the fastest."""
    return Reading(min(r.core for r in readings), min(r.caches for r in readings))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Drift-corrected seconds; the true value lies in ``low .. high`` with `CONFIDENCE`.

    ``crowded`` is the possible cost of crowded caches, as a factor; it is part of the interval.
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
        """The part of the spread that more repeats at the same moment can reduce."""
        return self.spread - 0.5 * math.log(self.crowded)


def estimate(
    samples: Sequence[float], readings: Sequence[Reading], least_s: float = 0.0
) -> Estimate:
    """The true time that `samples` (seconds per run, at least one) show.

    `readings` says for each how slow the machine was then. The interval's low end is the F(2, 2k)
    quantile of the exponential model; its middle allows for what the fastest of so few is still
    too slow. Slow caches widen the interval to both sides.

    `least_s`: the arithmetic of the task takes so long on this machine; 0 if that is not known. A
    reference kernel that was delayed more than the program would say that it takes less; so the
    correction ends there, or at the fastest sample.
    """
    count = len(samples)
    settled = _settled(readings)
    corrected = [
        _with_caches(s / r.core, r.caches**-_FELT, least_s)
        for s, r in zip(samples, settled, strict=True)
    ]
    fastest = min(corrected)
    crowded = settled[corrected.index(fastest)].caches
    delays = _PRIOR + count - 1
    delay = (_PRIOR * _DELAY + sum(c / fastest - 1 for c in corrected)) / delays
    quantile = delays * ((1 - CONFIDENCE) ** (-1 / delays) - 1)
    slack = 2 * _REFERENCE / math.sqrt(count)
    # The least and the most that it took, by the possible cost of the caches.
    quickest = _with_caches(fastest, crowded ** (_FELT - 1), least_s)
    slowest = _with_caches(fastest, crowded**_FELT, least_s)
    low = quickest * (1 - min(quantile * delay / count, 0.9)) * (1 - slack)
    middle, high = fastest * (1 - min(delay / count, 0.5)), slowest * (1 + slack)
    possible = min(least_s, *samples)
    if middle < possible:  # the true time is anywhere between the limit and what the clock said
        middle, high = possible, max(high, *samples)
    return Estimate(middle, max(low, possible), high, slowest / quickest)


def _with_caches(seconds: float, factor: float, least_s: float) -> float:
    """The time if all but the arithmetic takes `factor` times as long."""
    return seconds + (factor - 1) * max(0.0, seconds - least_s)


def _settled(readings: Sequence[Reading]) -> list[Reading]:
    """For each repeat the fastest readings of its moment; slow caches count up to `_WORST`."""
    moments = (readings[max(0, i - _MOMENT) : i + _MOMENT + 1] for i in range(len(readings)))
    settled = map(fastest_of, moments)
    return [Reading(r.core, min(_WORST, r.caches)) for r in settled]
