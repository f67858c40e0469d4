"""The lock of a slot: one process at a time has its cores for timing.

A slot has two files. Who wants to time first takes the queue, then the slot itself, exclusively.
A model that is called (`Calls`) takes both in the same order, but shared with other calls, and
gives the queue back at once. So a call waits while something is timed, nothing is timed during a
call, and calls that follow each other without a gap cannot keep the slot for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_LONGEST_WAIT_S = 1.0  # of a call; timing rarely takes so long
_STEP_S = 0.0005
_LOOK_S = 2.0  # how often calls look for slots that are new


def slot_lock(cache_dir: Path, run: tuple[int, ...]) -> Path:
    """The file to lock while timing anything on the cores `run`."""
    return cache_dir / f"slot-{'-'.join(map(str, run))}.lock"


@contextlib.contextmanager
def exclusively(lock: Path) -> Iterator[None]:
    """Have the slot of this lock during the block.

    The locks end with this process and its open files: nothing is left behind by a kill.
    """
    with contextlib.ExitStack() as stack:
        for path in (_queue(lock), lock):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


class Calls:
    """While it is entered, nothing is timed on this process's cores by slots of `cache_dir`.

    Any number of threads may enter it. It waits a second at most: then the call runs anyway.
    """

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._own = threading.local()

    def __enter__(self) -> None:
        deadline = time.monotonic() + _LONGEST_WAIT_S
        self._own.held = [slot for slot in self._slots() if slot.take(deadline)]

    def __exit__(self, *_error: object) -> None:
        for slot in self._own.held:
            slot.give_back()

    def _slots(self) -> list[_Slot]:
        """This thread's open locks; those of slots that are new are opened now and then."""
        now = time.monotonic()
        if now - getattr(self._own, "looked_at", -_LOOK_S) >= _LOOK_S:
            slots: dict[Path, _Slot] = getattr(self._own, "slots", {})
            self._own.looked_at, self._own.slots = now, {}
            for path in self._cache_dir.glob("slot-*.lock"):
                with contextlib.suppress(OSError):  # the folder of another user
                    self._own.slots[path] = slots.get(path) or _Slot(path)
        return [slot for slot in self._own.slots.values() if slot.shares_cores]


class _Slot:
    """The open files of one slot's lock, for one thread."""

    def __init__(self, lock: Path) -> None:
        cores = {int(core) for core in lock.stem.split("-")[1:] if core.isdigit()}
        self.shares_cores = bool(cores & os.sched_getaffinity(0))
        self._lock = open(lock, "ab")  # noqa: SIM115 - open as long as the thread lives
        self._queue = open(_queue(lock), "ab")  # noqa: SIM115

    def take(self, deadline: float) -> bool:
        """Take the slot together with other calls; False where that was not possible in time."""
        while True:
            try:
                fcntl.flock(self._queue, fcntl.LOCK_SH | fcntl.LOCK_NB)
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return True
                finally:
                    fcntl.flock(self._queue, fcntl.LOCK_UN)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_STEP_S)

    def give_back(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)


def _queue(lock: Path) -> Path:
    return lock.with_suffix(".queue")
