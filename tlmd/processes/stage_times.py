"""How long each stage of a job takes, in all its processes, written to one file.

Where the environment variable `STAGES` names a file, each process appends a line of JSON for each
stage that ends in it. `python -m benchmarks.time_to_model` sets it; otherwise nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

STAGES = "TLMD_STAGES"
"""Environment variable with the path of the file; processes inherit it."""

_inner = threading.local()  # .spent: wall and CPU seconds of the stages inside of the present one


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Note how long the block takes, without the stages inside of it.

    The CPU seconds are those of all threads of this process, and of the children that it has waited
    for in the block.
    """
    if STAGES not in os.environ:
        yield
        return
    outer, _inner.spent = getattr(_inner, "spent", (0.0, 0.0)), (0.0, 0.0)
    began, cpu_began = time.time(), _cpu_s()
    try:
        yield
    finally:
        wall, cpu = time.time() - began, _cpu_s() - cpu_began
        inner = _inner.spent
        note(name, began, wall - inner[0], cpu - inner[1])
        _inner.spent = outer[0] + wall, outer[1] + cpu


def note(name: str, began: float, wall_s: float, cpu_s: float) -> None:
    """Write one line. `began` is in seconds since the epoch."""
    if STAGES not in os.environ:
        return
    line: dict[str, Any] = {
        "stage": name,
        "pid": os.getpid(),
        "began": round(began, 3),
        "wall_s": round(wall_s, 3),
        "cpu_s": round(cpu_s, 3),
    }
    with contextlib.suppress(OSError), open(os.environ[STAGES], "a") as file:
        file.write(json.dumps(line) + "\n")  # one write: lines of processes do not mix


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
