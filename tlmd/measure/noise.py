"""From clocked repeats to a time: drift-corrected, with an interval that it lies in.

Whatever disturbs a program delays it, so the fastest repeat is nearest to the truth (Chen & Revels,
arXiv 1608.04295) and what the others take longer tells how near: delays are taken as exponential,
for which the minimum's excess has a known distribution. The machine's own speed is divided out
before, repeat by repeat, by a reference kernel that was timed around each of them; its readings are
delayed by the same accidents, so the fastest of a moment counts. Dividing by a delayed one would
turn an accident into luck, which a minimum then picks.
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


@dataclass(frozen=True, slots=True)
class Estimate:
    """Drift-corrected seconds; the true value lies in ``low .. high`` with `CONFIDENCE`."""

    seconds: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half the interval's width as a share of the time."""
        return 0.5 * math.log(self.high / self.low)


def estimate(samples: Sequence[float], drifts: Sequence[float]) -> Estimate:
    """The time behind `samples` (seconds per run, at least one).

    `drifts` says for each how slow the machine was then: the reference kernel's time over its time
    when all was quiet. The interval's low end is the F(2, 2k) quantile of the exponential model;
    its middle allows for what the fastest of so few is still too slow.
    """
    count = len(samples)
    corrected = [s / d for s, d in zip(samples, _settled(drifts), strict=True)]
    fastest = min(corrected)
    known = _PRIOR + count - 1
    delay = (_PRIOR * _DELAY + sum(c / fastest - 1 for c in corrected)) / known
    quantile = known * ((1 - CONFIDENCE) ** (-1 / known) - 1)
    slack = 2 * _REFERENCE / math.sqrt(count)
    low = fastest * (1 - min(quantile * delay / count, 0.9)) * (1 - slack)
    return Estimate(fastest * (1 - min(delay / count, 0.5)), low, fastest * (1 + slack))


def _settled(drifts: Sequence[float]) -> list[float]:
    """For each repeat the fastest reading of its moment."""
    return [min(drifts[max(0, i - _MOMENT) : i + _MOMENT + 1]) for i in range(len(drifts))]
