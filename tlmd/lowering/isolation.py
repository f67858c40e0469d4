"""Tries what may end the process in a fork of it first: TVM's importers and programs can crash."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from tlmd.data.errors import NotImportable


def prepare() -> None:
    """Let this process be forked safely from now on: neither TVM nor PyTorch starts threads.

    Called before either has computed anything.
    """
    from tlmd.tlm import torch_settings  # loads PyTorch

    os.environ["TVM_NUM_THREADS"] = "1"
    torch_settings.use_threads(1)


def check(work: Callable[[], Any]) -> None:
    """Do `work` in a fork. Raises `NotImportable` if it fails there or ends the process."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        how = signal.Signals(os.WTERMSIG(status)).name
        raise NotImportable(f"TVM ends the process ({how})")
    if status:
        raise NotImportable("TVM cannot compile it rightly")
