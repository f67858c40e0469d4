"""Where building shares the cores with the timing, the two take turns: all others are stopped.

A lower priority would not do. TVM's threads wait for each other by giving their core away
(`sched_yield`), and then even a program of the lowest priority keeps it for milliseconds.

Processes that compute for the daemon on the same machine join the folder of the slot with `join`.
The measuring server stops them, and its children that build, while a child is timed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

_FOLDER = "take_turns"


class Turns:
    """Stops and resumes the others for a measuring server."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._stopped_at: float | None = None
        self.resume([])  # an earlier server may have been killed in the middle of a turn

    @property
    def stopped(self) -> bool:
        """The others stand still."""
        return self._stopped_at is not None

    def stop(self, others: Sequence[int], timed: Sequence[int]) -> None:
        """Stop the processes `others` and those that joined; let those go on that are `timed`.

        One of them may have got the slot just before it was stopped as one of the others.
        """
        stop([*others, *joined(self._cache_dir)])
        resume(timed)
        self._stopped_at = self._stopped_at or time.monotonic()

    def resume(self, others: Sequence[int]) -> float:
        """Let them go on; returns for how many seconds they were stopped."""
        resume([*others, *joined(self._cache_dir)])
        stopped_at, self._stopped_at = self._stopped_at, None
        return time.monotonic() - stopped_at if stopped_at else 0.0


def join(cache_dir: Path) -> None:
    """Have this process stopped while a slot of this folder times on shared cores."""
    folder = cache_dir / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(os.getpid())).write_text(_started(os.getpid()))


def joined(cache_dir: Path) -> list[int]:
    """The processes that have joined and are alive."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in (cache_dir / _FOLDER).iterdir():
            started = _started(int(path.name)) if path.name.isdigit() else ""
            with contextlib.suppress(FileNotFoundError):
                if started and path.read_text() == started:
                    found.append(int(path.name))
                else:
                    path.unlink()
    return found


def siblings() -> list[int]:
    """The other children of this process's parent."""
    parent = os.getppid()
    try:
        pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return []
    return [int(pid) for pid in pids if int(pid) != os.getpid()]


def stop(pids: Iterable[int]) -> None:
    """Stop processes until `resume`."""
    _signal(pids, signal.SIGSTOP)


def resume(pids: Iterable[int]) -> None:
    """Let stopped processes go on."""
    _signal(pids, signal.SIGCONT)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            os.kill(pid, number)


def _started(pid: int) -> str:
    """When a process was started, in clock ticks: another process may get the same pid later."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
