"""Failed starts of actors: an actor is started again, or the daemon ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from actors.placement import ActorSpec
from tlmd.data.errors import Failed

_MAX_STARTS = 3  # failed starts in a row of an actor without which there is nothing to do
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 600.0


class StartFailures:
    """Counts the failed starts of each actor.

    One that may be missing is tried again after a pause, which doubles each time. Any other one is
    tried again at once, three times.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._counts: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def add(self, spec: ActorSpec, reason: str) -> float:
        """An actor could not be started. The seconds until it may be tried again.

        Raises `Failed` where the daemon cannot work without it.
        """
        count = self._counts[spec.name] = self._counts.get(spec.name, 0) + 1
        if not spec.optional:
            if count >= _MAX_STARTS:
                raise Failed(f"{spec.name} cannot be started: {reason}")
            return 0.0
        pause: float = min(_FIRST_PAUSE_S * 2 ** min(count - 1, 10), _LONGEST_PAUSE_S)
        self._not_before[spec.name] = self._now() + pause
        return pause

    def forget(self, name: str) -> None:
        """It has started."""
        self._counts.pop(name, None)
        self._not_before.pop(name, None)

    def may_start(self, name: str) -> bool:
        """Whether its pause is over."""
        return self._now() >= self._not_before.get(name, 0.0)
