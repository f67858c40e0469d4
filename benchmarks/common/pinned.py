"""Runs a module of the benchmarks in a process of its own, on given cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tlmd.processes import children


def run(
    module: str,
    *arguments: str | Path,
    cores: tuple[int, ...],
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run `python -m benchmarks.<module>` on `cores`; its standard output.

    ``environment`` holds all variables of the process (default: `children.environment`). Ends the
    benchmark where the process fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)],
        env=environment or children.environment(),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode:
        raise SystemExit(f"benchmarks.{module} failed: {done.stderr[-800:]}")
    return done.stdout
