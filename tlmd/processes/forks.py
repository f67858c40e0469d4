"""Work that forked copies of this process do together with it, one piece after the other.

A fork begins in milliseconds with all that is loaded and known. It is only safe in a process of
tlmd's own, in which no other thread holds a lock: such a process says so with `allow`. Everywhere
else, as in the process of a user, the caller does all the work itself.
"""

from __future__ import annotations

import os
import signal
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import IO

from tlmd.processes import children

Work = Callable[[int], bytes]
"""Does the piece of work with this number, and returns what it gave."""

_INDEX = struct.Struct("<I")
_HEAD = struct.Struct("<II")  # the number of a piece of work, and the bytes of its result
_MOST = 8  # processes, which need memory
_is_allowed = False


def allow() -> None:
    """Let `each` fork this process from now on."""
    global _is_allowed
    _is_allowed = True


def processes() -> int:
    """How many processes work together, this one included: one for each core that is free to use.

    Asked anew each time, because the cores of a process change.
    """
    return min(_MOST, len(os.sched_getaffinity(0))) if _is_allowed else 1


def each(work: Work, count: int) -> list[bytes]:
    """The results of `work` for 0 to `count - 1`; give what takes long low numbers.

    `work` runs in this process and in forks of it. What a fork does not manage, because of an error
    or because something ends it, this process does again: so errors are raised here.
    """
    helpers = min(processes(), count) - 1
    found: dict[int, bytes] = {}
    if helpers > 0:
        found = _together(work, count, helpers)
    return [found[index] if index in found else work(index) for index in range(count)]


def _together(work: Work, count: int, helpers: int) -> dict[int, bytes]:
    queue = _queue(count)
    pids: list[int] = []
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(helpers)]
        try:
            for file in files:
                pids.append(_fork(work, queue, file))
            found = {index: work(index) for index in _taken(queue)}
            while pids:
                os.waitpid(pids.pop(), 0)
        finally:
            os.close(queue)
            for pid in pids:  # an error, or the user, has ended the work
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        for file in files:
            found.update(_results(file))
    return found


def _queue(count: int) -> int:
    """A pipe with the numbers of the pieces; each is read by one process only.

    Those that do not fit into it are left to the caller.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with suppress(BlockingIOError):
        for index in range(count):
            os.write(write_end, _INDEX.pack(index))
    os.close(write_end)
    return read_end


def _taken(queue: int) -> Iterator[int]:
    while taken := os.read(queue, _INDEX.size):
        yield _INDEX.unpack(taken)[0]


def _fork(work: Work, queue: int, file: IO[bytes]) -> int:
    """The process id of a child that works until the queue is empty."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        children.signal_at_end_of_parent(signal.SIGKILL)
        if os.getppid() == parent:
            for index in _taken(queue):
                with suppress(Exception):  # the parent meets it, too
                    result = work(index)
                    file.write(_HEAD.pack(index, len(result)) + result)
                    file.flush()
    finally:
        os._exit(0)


def _results(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The complete results that a child has written."""
    file.seek(0)
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        index, length = _HEAD.unpack(head)
        if len(result := file.read(length)) == length:
            yield index, result
