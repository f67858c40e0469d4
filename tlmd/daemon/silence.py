"""Keep what libraries print away from the user: standard output and error go to a log meanwhile.

TVM's C++ and LLVM write to the file descriptors themselves, so replacing `sys.stderr` is not
enough; what tlmd itself says goes to copies of the original ones.
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

from tlmd.errors import Failed, Interrupted, TlmdError

_LARGE = 4 << 20  # bytes of a log; then it starts anew


@contextlib.contextmanager
def silenced(log: Path) -> Iterator[TextIO]:
    """Write what comes to file descriptors 1 and 2 to `log`; gives the original standard error.

    An unexpected error gets a note that names the log, and a crash prints where it happened.
    """
    descriptor = _open(log)
    _flush()
    kept = os.dup(1), os.dup(2)
    with os.fdopen(kept[1], "w", buffering=1, errors="replace") as original:
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


def _open(log: Path) -> int:
    """The log, with a line that says what starts."""
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
