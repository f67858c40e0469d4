"""Processes of our own: their environment, by which they find tlmd wherever it is."""

from __future__ import annotations

import os
from pathlib import Path


def environment(*paths: str, **variables: str) -> dict[str, str]:
    """This process's environment with `variables`; modules are looked for in `paths` and here."""
    root = str(Path(__file__).parents[1])
    search = filter(None, (*paths, root, os.environ.get("PYTHONPATH", "")))
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(search)}


def running_tvm(threads: int, **variables: str) -> dict[str, str]:
    """The same for a process that runs TVM's programs with `threads` threads.

    TVM would pin its threads to core numbers of its own; they inherit the process's instead.
    """
    return environment(TVM_NUM_THREADS=str(threads), TVM_BIND_THREADS="0", **variables)
