"""Python imports this at the start of every process of the chaos daemon: it moves the clock.

`time.time` is shifted by the seconds that the file `CHAOS_CLOCK` holds now. Files, SQLite and Ray's
own processes keep the true time, as programs on another machine would.
"""

from __future__ import annotations

import os
import time

_true_time = time.time
_file = os.environ.get("CHAOS_CLOCK", "")


def moved() -> float:
    """Seconds since the epoch by the moved clock."""
    try:
        with open(_file, encoding="ascii") as file:
            return _true_time() + float(file.read())
    except (OSError, ValueError):  # it is being written
        return _true_time()


if _file:
    time.time = moved
