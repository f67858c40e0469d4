"""Environment variables for the processes that tlmd starts, so that they can import tlmd."""

from __future__ import annotations

import os
from pathlib import Path

VERBOSE = "TLMD_VERBOSE"
"""Environment variable of ``--verbose``; processes inherit it."""


def environment(*paths: str, **variables: str) -> dict[str, str]:
    """Return the environment of this process with `variables` added.

    Python then imports modules from `paths`, from the folder of this tlmd and from PYTHONPATH.
    """
    root = str(Path(__file__).parents[2])
    search = filter(None, (*paths, root, os.environ.get("PYTHONPATH", "")))
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(search)}


def running_tvm(threads: int, **variables: str) -> dict[str, str]:
    """Return the environment of a process that runs TVM programs with `threads` threads.

    TVM does not pin its threads to core numbers of its own choice: they use the process's cores.
    """
    return environment(TVM_NUM_THREADS=str(threads), TVM_BIND_THREADS="0", **variables)
