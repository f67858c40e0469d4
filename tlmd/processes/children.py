"""The environment of the processes that tlmd starts, and the signals that end them."""

from __future__ import annotations

import ctypes
import locale
import os
import signal
from pathlib import Path

_ASCII = {"ASCII", "US-ASCII", "ANSI_X3.4-1968", "646"}
_PR_SET_PDEATHSIG = 1
VERBOSE = "TLMD_VERBOSE"
"""Environment variable of ``--verbose``; processes inherit it."""


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a process in order: by the user, by a service manager, by a terminal.

    SIGHUP is left out where it is ignored, as `nohup` does.
    """
    always = (signal.SIGINT, signal.SIGTERM)
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return always if ignored else (*always, signal.SIGHUP)


def signal_at_end_of_parent(which: signal.Signals) -> None:
    """Let Linux send this process a signal when the thread that has started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, which)


def environment(*paths: str, **variables: str) -> dict[str, str]:
    """Return the environment of this process with `variables` added.

    Python then imports modules from `paths`, from the folder of this tlmd and from PYTHONPATH.
    Where the environment says ASCII, the process reads and writes files in UTF-8 all the same.
    """
    if locale.getpreferredencoding(False).upper() in _ASCII:
        variables.setdefault("PYTHONUTF8", "1")
    root = str(Path(__file__).parents[2])
    search = filter(None, (*paths, root, os.environ.get("PYTHONPATH", "")))
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(search)}


def running_tvm(threads: int, **variables: str) -> dict[str, str]:
    """Return the environment of a process that runs TVM programs with `threads` threads.

    TVM does not pin its threads to core numbers of its own choice: they use the process's cores.
    """
    return environment(TVM_NUM_THREADS=str(threads), TVM_BIND_THREADS="0", **variables)
