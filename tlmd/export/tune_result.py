"""The result of `tlmd tune` and `tlmd export`. Imports nothing heavy."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tlmd.data.errors import BadInput


@dataclass(frozen=True)
class TuneResult:
    """The result of a job."""

    summary: dict[str, Any]
    """The content of ``summary.json``."""

    out: Path | None
    """The folder with the written files; None if nothing was written."""

    pytorch_ms: float | None
    """Time of the original model in PyTorch eager mode on the same cores, in milliseconds. None if
    it is not a PyTorch model, or if nothing was exported."""

    interrupted: bool
    """The user stopped the job before its end."""

    limits: tuple[str, ...] = ()
    """For each task, the limit of which its ``peak_fraction`` is a share: the nearer of ``compute``
    and ``memory`` (the roofline)."""

    slowed: float = 0.0
    """Share of the job's times that were taken while other programs slowed the cores."""

    untuned_is_sum: bool = False
    """The time of the untuned model is the sum of its tasks', since it would run for too long."""

    def to_plain(self) -> dict[str, Any]:
        """The result for a message to another process."""
        return asdict(self) | {"out": str(self.out) if self.out else None}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> TuneResult:
        """The result of `to_plain`."""
        out = Path(plain["out"]) if plain["out"] else None
        return cls(**(plain | {"out": out, "limits": tuple(plain["limits"])}))


def check_out(out: Path | None) -> None:
    """Check, before hours of measuring, that results can be written to `out`. Raises `BadInput`."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise BadInput(
            f"cannot write to --out {out}: {error.strerror}; choose another folder"
        ) from error
