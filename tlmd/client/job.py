"""`Job`: one job of a daemon. Imports no heavy packages."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.data.errors import Failed, NoDaemon
from tlmd.data.types import JobState

if TYPE_CHECKING:
    from tlmd.client.connection import Daemon
    from tlmd.export.tune_result import TuneResult


class Job:
    """A job of a daemon."""

    def __init__(self, daemon: Daemon, job_id: str) -> None:
        self.daemon = daemon
        self.id = job_id

    def status(self) -> dict[str, Any]:
        """Return everything about the job: state, progress, tasks with their best µs."""
        document: dict[str, Any] = self.daemon.ask("GET", f"/v1/jobs/{self.id}")
        return document

    def wait(
        self,
        timeout: float | None = None,
        progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Block until the job has ended and return its status. Call `progress` at each change.

        Raises `Failed` if the job failed or was cancelled, `TimeoutError` after `timeout` seconds,
        and `NoDaemon` if the daemon ended first.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        last: dict[str, Any] = {}
        for document in self.daemon.follow(self.id):
            if progress is not None and document != last:
                progress(document)
            last = document
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {self.id} is not over after {timeout:g} s")
        if not last or not JobState(last["state"]).is_finished:
            raise NoDaemon(f"the daemon ended before job {self.id}; `tlmd start` continues the job")
        if last["state"] != "done":
            raise Failed(f"job {self.id} {last['state']}: {last['reason'] or 'on request'}")
        return self.status()

    def cancel(self) -> None:
        """End the job. Everything measured is kept."""
        self.daemon.ask("POST", f"/v1/jobs/{self.id}/cancel")

    def export(self, out: str | os.PathLike[str] | None = None) -> TuneResult:
        """Compile the model with its best programs. Writes the files of `tlmd.tune` to `out`."""
        from tlmd.export.job_export import export

        return export(self.daemon.state_dir, self.id, Path(out) if out else None)
