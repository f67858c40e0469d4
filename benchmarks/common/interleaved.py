"""Times several functions in turns in one process, so that other load affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

_DISCARDED = 3  # runs of each turn: threads of the turn before may still spin


def medians_ms(runs: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The median milliseconds of each function; each has five turns of a second."""
    found = rounds(runs, 5, 1.0)
    return {name: statistics.median(chain(*turns)) * 1e3 for name, turns in found.items()}


def rounds(
    runs: Mapping[str, Callable[[], Any]], count: int, turn_s: float, discarded: int = _DISCARDED
) -> dict[str, list[list[float]]]:
    """For each function and each of `count` rounds, the seconds of its runs in a turn of `turn_s`.

    The first `discarded` runs of a turn are left out; there is at least one more.
    """
    found: dict[str, list[list[float]]] = {name: [] for name in runs}
    for _ in range(count):
        for name, run in runs.items():
            found[name].append(_turn(run, turn_s, discarded))
    return found


def _turn(run: Callable[[], Any], turn_s: float, discarded: int) -> list[float]:
    """Seconds of the runs of one turn."""
    end = time.perf_counter() + turn_s
    seconds: list[float] = []
    while time.perf_counter() < end or len(seconds) <= discarded:
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return seconds[discarded:]
