"""The request of `tlmd tune`: the job, and options of this run alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tlmd.data.job_request import JobRequest


@dataclass(frozen=True)
class TuneRequest:
    """One run of `tlmd tune`."""

    job: JobRequest
    """Its numbers are filled in (`JobRequest.with_defaults`)."""

    out: Path | None = None
    """Folder for the results. None: nothing is written."""

    state_dir: Path = Path()

    config: Path | None = None
    """Configuration file for a private daemon."""

    flags: dict[str, Any] = field(default_factory=dict)
    """Dotted keys of the configuration for a private daemon."""
