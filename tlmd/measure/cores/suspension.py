"""Suspension of processes while a program is timed on the cores that they share with it.

A lower priority would not do. TVM's threads wait for each other by giving their core away
(`sched_yield`), and then even a program of the lowest priority keeps it for milliseconds.

Processes that compute for the daemon on the same machine join the folder of the slot with `join`.
The measuring server suspends them, and its children that build, while a child is timed. psutil
suspends and resumes; the children of a process are read from /proc, which is a hundred times as
fast as asking psutil, which looks at all processes of the machine.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

_FOLDER = "take_turns"


class Suspension:
    """Suspends and resumes the others for a measuring server."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._since: float | None = None
        self.resume([])  # an earlier server may have been killed while it timed

    @property
    def is_suspending(self) -> bool:
        """The others stand still."""
        return self._since is not None

    def suspend(self, others: Sequence[int], timed: Sequence[int]) -> None:
        """Suspend the processes `others` and those that joined; let those go on that are `timed`.

        One of them may have got the slot just before it was suspended as one of the others.
        """
        suspend([*others, *joined(self._cache_dir)])
        resume(timed)
        self._since = self._since or time.monotonic()

    def resume(self, others: Sequence[int]) -> float:
        """Let them go on; returns the seconds for which they stood still."""
        resume([*others, *joined(self._cache_dir)])
        since, self._since = self._since, None
        return time.monotonic() - since if since else 0.0


def join(cache_dir: Path) -> None:
    """Have this process suspended while a slot of this folder times on shared cores."""
    folder = cache_dir / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(os.getpid())).write_text(_started(os.getpid()))


def joined(cache_dir: Path) -> list[int]:
    """The processes that have joined and are alive."""
    pids = []
    with contextlib.suppress(FileNotFoundError):
        for path in (cache_dir / _FOLDER).iterdir():
            started = _started(int(path.name)) if path.name.isdigit() else ""
            with contextlib.suppress(FileNotFoundError):
                if started and path.read_text() == started:
                    pids.append(int(path.name))
                else:
                    path.unlink()
    return pids


def siblings() -> list[int]:
    """The other children of this process's parent."""
    parent = os.getppid()
    try:
        pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return []
    return [int(pid) for pid in pids if int(pid) != os.getpid()]


def suspend(pids: Iterable[int]) -> None:
    """Suspend processes until `resume`."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):  # it has ended
            psutil.Process(pid).suspend()


def resume(pids: Iterable[int]) -> None:
    """Let suspended processes go on."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).resume()


def _started(pid: int) -> str:
    """When a process was started, in clock ticks: another process may get the same pid later.

    psutil gives a time of day, which changes with the machine's clock.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
