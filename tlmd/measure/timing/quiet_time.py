"""Times of small kernels on a quiet machine, kept for the servers that come later.

A server that starts beside another user of the core reads a slow machine. Its times would be
relative to that reading, and longer than those of a server that started in a quiet moment, with
which they are compared. So the fastest reading of all servers on the same hardware counts.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from tlmd.processes.durable import replacing


def fastest(directory: Path, name: str, seconds: float) -> float:
    """The least of `seconds` and of what earlier servers read for `name`; keeps it for later ones.

    A damaged file counts as none. Where nothing can be written, later servers do not know of it.
    """
    path = directory / f"quiet-{name}"
    stored_s = math.inf
    with contextlib.suppress(OSError, ValueError):
        stored_s = float(path.read_text())
    if 0 < stored_s <= seconds:
        return stored_s
    with contextlib.suppress(OSError), replacing(path) as new:
        new.write_text(f"{seconds!r}\n")
    return seconds
