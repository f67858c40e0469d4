"""What the system says of this machine's CPU."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


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
