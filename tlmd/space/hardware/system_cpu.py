"""Properties of this machine's CPU, as the system reports them."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
_ASK = 158, 0x1023, 18


def cpu_model() -> str:
    """The model name of the CPU, as the system reports it."""
    try:
        for line in CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or os.uname().machine


def flags(cpuinfo: Path = CPUINFO) -> set[str]:
    """The instruction sets of the CPU, as Linux names them, without underscores."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return set()
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return set(match[1].replace("_", "").split()) if match else set()


@functools.cache
def may_use_matrix_unit() -> bool:
    """Whether Linux lets this process use Intel's AMX, which it does for all that ask.

    Sandboxes may forbid to ask (``arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)``).
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return int(ctypes.CDLL(None).syscall(*_ASK)) == 0
