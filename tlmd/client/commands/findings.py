"""The findings of `tlmd doctor`, and what its checks are given."""

from __future__ import annotations

import importlib.metadata
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlmd.data.config import Config

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """One result of a check."""

    check: str
    status: str
    """``ok``, ``warn`` or ``fail``."""
    detail: str
    mend: str = ""
    """Advice for the user; empty if there is nothing to do."""


def requirements() -> tuple[str, list[str]]:
    """Return the Python versions and the packages that tlmd requires.

    They come from the installed package or, if tlmd is not installed, from ``pyproject.toml``.
    """
    try:
        metadata = importlib.metadata.metadata("tlmd")
        return metadata["Requires-Python"] or "", importlib.metadata.requires("tlmd") or []
    except importlib.metadata.PackageNotFoundError:
        source = Path(__file__).parents[2] / "pyproject.toml"
        project = tomllib.loads(source.read_text())["project"]
        return project["requires-python"], project["dependencies"]


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free


@dataclass(frozen=True)
class CheckContext:
    """The state directory, the configuration, and functions that look at the machine.

    Tests replace these functions.
    """

    state_dir: Path
    config: Config
    version: Callable[[str], str] = importlib.metadata.version
    requirements: Callable[[], tuple[str, list[str]]] = requirements
    free_bytes: Callable[[Path], int] = _free_bytes
    which: Callable[[str], str | None] = shutil.which

    def slot(self) -> tuple[Any, Any]:
        """Return the core layout and the target that `tlmd tune` would use."""
        from tlmd.measure.cores.core_plan import plan_cores
        from tlmd.space.hardware.target import resolve

        cores = plan_cores(run=self.config.measure.run_cores or None)
        return cores, resolve("native", len(cores.run))


MachineCheck = Callable[[CheckContext], Iterator[Finding]]
