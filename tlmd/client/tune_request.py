"""What `tlmd tune` is asked to do. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tlmd.data.model_spec import ModelSpec


@dataclass(frozen=True)
class TuneRequest:
    """The arguments of `tlmd tune`."""

    spec: ModelSpec
    target: str = "native"

    time_budget: float | None = None
    """Seconds for measuring. None: no limit."""

    out: Path | None = None
    state_dir: Path = Path()

    config: Path | None = None
    """Configuration file for a private daemon."""

    flags: dict[str, Any] = field(default_factory=dict)
    """Dotted keys of the configuration for a private daemon."""
