"""Redirect the output of libraries to a log, so that the user does not see it.

The C++ code of TVM and LLVM writes directly to the file descriptors, so replacing `sys.stderr` is
not enough. tlmd writes its own messages to copies of the original descriptors.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from tlmd.client.display.encoding import ERRORS
from tlmd.data.errors import Failed, Interrupted, TlmdError
from tlmd.processes.children import VERBOSE

_LARGE = 4 << 20  # bytes; a larger log is emptied first


@contextlib.contextmanager
def captured_output(log: Path) -> Iterator[TextIO]:
    """Redirect file descriptors 1 and 2 to `log`, and yield the original standard error.

    An unexpected error gets a note with the path of the log. A crash prints a traceback. With
    ``--verbose`` both go to standard error instead.
    """
    if os.environ.get(VERBOSE):
        with _all_to_stderr() as stderr:
            yield stderr
        return
    descriptor = _open(log)
    _flush()
    kept = os.dup(1), os.dup(2)
    with os.fdopen(kept[1], "w", buffering=1, errors=ERRORS) as original:
        faulthandler.enable(original)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        try:
            yield original
        except (TlmdError, KeyboardInterrupt, Interrupted):
            raise
        except BaseException as error:
            error.add_note(f"The log of this run is {log}")
            raise
        finally:
            _flush()
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            faulthandler.disable()


@contextlib.contextmanager
def _all_to_stderr() -> Iterator[TextIO]:
    """Keep standard output free of the output of libraries."""
    _flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield sys.stderr
    finally:
        _flush()
        os.dup2(kept, 1)
        os.close(kept)


def _open(log: Path) -> int:
    """Open the log and write a line with the time and the command to it. Raises `Failed`."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        large = log.exists() and log.stat().st_size > _LARGE
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if large else 0)
        descriptor = os.open(log, flags, 0o644)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        os.write(descriptor, f"--- {stamp} {' '.join(sys.argv)}\n".encode(errors="replace"))
    except OSError as error:
        raise Failed(f"cannot write {log}: {error.strerror}; free some disk") from error
    return descriptor


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
