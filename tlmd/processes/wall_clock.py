"""The time of day of records, which never goes back."""

from __future__ import annotations

import time
from collections.abc import Callable

_STEP_S = 1e-6


class WallClock:
    """Seconds since the epoch; each call of `now` gives more than the one before.

    The machine's clock may be set back. The newest of two records of a candidate is found by their
    times, so those of later ones must be later all the same. `last` is the newest known time.
    """

    def __init__(self, last: float = 0.0, clock: Callable[[], float] = time.time) -> None:
        self._last = last
        self._clock = clock

    def now(self) -> float:
        """The time of something that happens now."""
        self._last = max(self._clock(), self._last + _STEP_S)
        return self._last

    def set_at_least(self, moment: float) -> None:
        """Something has happened at `moment`: what follows is later."""
        self._last = max(self._last, moment)
