"""A forked child as the measuring server sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field

from tlmd.measure.protocol import MeasureRequest, MessageReader
from tlmd.types import Outcome

_TIMED = "running"  # the stage in which a child has the slot


@dataclass
class ForkedChild:
    """A child that runs, and what the server knows of it."""

    pid: int
    fd: int
    """Where its messages arrive."""
    log_fd: int
    """What it prints."""
    request: MeasureRequest
    deadline: float | None
    """When the server kills it; None while it waits for the slot."""
    stage: str = "building"
    reader: MessageReader = field(default_factory=MessageReader)
    outcomes: tuple[Outcome, ...] = ()
    expired: bool = False

    @property
    def is_timed(self) -> bool:
        return self.stage == _TIMED

    def kill(self) -> None:
        """End it at once; harmless where it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for it after its pipe has ended; kill it after a second. The wait status."""
        for _ in range(200):
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                return status
            time.sleep(0.005)
        self.kill()
        return os.waitpid(self.pid, 0)[1]
