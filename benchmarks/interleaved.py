"""Times several functions in turns in one process, so that other load affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

_ROUNDS, _TURN_S = 5, 1.0
_DISCARDED = 3  # runs of each turn: threads of the turn before may still spin


def medians_ms(runs: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The median milliseconds of each function; each has five turns of a second."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            found[name] += _turn(run)
    return {name: statistics.median(seconds) * 1e3 for name, seconds in found.items()}


def _turn(run: Callable[[], Any]) -> list[float]:
    """Seconds of the runs of one turn."""
    end, seconds = time.perf_counter() + _TURN_S, []
    while time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return seconds[_DISCARDED:] or seconds
