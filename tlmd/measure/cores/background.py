"""A daemon in the background works only part of the time while other programs use its cores.

A lower priority alone does not protect them: threads that wait for each other at a barrier lose
milliseconds to any other program on one of their cores (`suspension`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_STAT = Path("/proc/stat")
_INTERVAL_S = 0.2  # the kernel counts in steps of 10 ms
_BUSY_CORES = 0.2  # other programs that use less are not noticed
_REMEMBERED_S = 2.0  # a program that is idle for less is still there
_WORK_S = 0.5


class OtherPrograms:
    """Watches how much of `cores` programs of normal priority use.

    The kernel counts processes with a higher nice value apart, so a daemon with one does not see
    its own work. Without ``/proc/stat`` nothing is ever in use.
    """

    def __init__(self, cores: Iterable[int], stat: Path = _STAT) -> None:
        self._names = {f"cpu{core}" for core in cores}
        self._stat = stat
        self._last = self._used_s()
        self._read_at = time.monotonic()
        self._in_use = 0.0

    def cores_in_use(self, now: float | None = None) -> float:
        """The cores that they used since the last call, at least 0.2 s ago: 0 to ``len(cores)``."""
        now = time.monotonic() if now is None else now
        if now - self._read_at >= _INTERVAL_S:
            used = self._used_s()
            self._in_use = (used - self._last) / (now - self._read_at)
            self._last, self._read_at = used, now
        return self._in_use

    def _used_s(self) -> float:
        """Seconds of all cores together in user mode at normal priority."""
        try:
            lines = self._stat.read_text().splitlines()
        except OSError:
            return 0.0
        rows = (line.split() for line in lines)
        ticks = sum(int(row[1]) for row in rows if row and row[0] in self._names)
        return ticks / os.sysconf("SC_CLK_TCK")


class BackgroundWork:
    """Says when this process's work must stand still. `share` as in ``measure.background_share``.

    Never, where `share` is 1 or this process has the normal priority.
    """

    def __init__(self, others: OtherPrograms, share: float) -> None:
        self.is_limited = share < 1 and os.getpriority(os.PRIO_PROCESS, 0) > 0
        self.others = others
        self._share = share
        self._seen_at = float("-inf")
        self._now = time.monotonic()
        self._balance_s = _WORK_S
        self._waits = False

    def must_wait(self, now: float | None = None) -> bool:
        """Whether to stand still now; call it several times a second.

        While others use the cores, work of `_WORK_S` seconds is followed by so long a pause that it
        has its share of the time. Work that cannot be interrupted makes the next pause longer.
        """
        if not self.is_limited:
            return False
        now = time.monotonic() if now is None else now
        passed, self._now = now - self._now, now
        if self.others.cores_in_use(now) > _BUSY_CORES:
            self._seen_at = now
        if now - self._seen_at > _REMEMBERED_S:
            self._balance_s, self._waits = _WORK_S, False
            return False
        spent = 0.0 if self._waits else passed
        self._balance_s = min(self._balance_s + self._share * passed - spent, _WORK_S)
        if self._balance_s <= 0:
            self._waits = True
        elif self._balance_s >= _WORK_S * (1 - self._share):
            self._waits = False
        return self._waits
