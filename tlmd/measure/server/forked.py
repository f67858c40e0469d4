"""A forked child as the measuring server sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from tlmd.data.types import Outcome
from tlmd.measure.protocol import ChildStage, MeasureRequest, MessageReader

_LEAST_WAIT_S = 0.05  # a shorter wait for a core does not move a deadline


@dataclass
class ForkedChild:
    """A child that runs, and its state as the server knows it."""

    pid: int
    fd: int
    """Where its messages arrive."""
    log_fd: int
    """Its output and its errors."""
    request: MeasureRequest
    deadline: float | None = None
    """When the server kills it; None while it waits for the slot, or in it for a quiet machine."""
    stage: ChildStage = ChildStage.BUILDING
    reader: MessageReader = field(default_factory=MessageReader)
    outcomes: tuple[Outcome, ...] = ()
    expired: bool = False
    waited_s: float = 0.0
    """How long it had waited for a core when its deadline was set."""

    def set_deadline(self, limit_s: float | None) -> None:
        """Kill it in `limit_s` seconds; None: never."""
        self.deadline = None if limit_s is None else time.monotonic() + limit_s
        self.waited_s = core_wait_s(self.pid)

    def extend_deadline(self) -> bool:
        """Move the deadline by the wait for a core since it was set; False if there was none."""
        waited_s = core_wait_s(self.pid)
        extra_s, self.waited_s = waited_s - self.waited_s, waited_s
        if self.deadline is None or extra_s < _LEAST_WAIT_S:
            return False
        self.deadline += extra_s
        return True

    @property
    def is_timed(self) -> bool:
        """Whether it has the slot."""
        return self.stage.has_slot

    def kill(self) -> None:
        """End it at once; harmless where it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for it after its pipe has ended; kill it after a second. The wait status."""
        for _ in range(200):
            ended_pid, status = os.waitpid(self.pid, os.WNOHANG)
            if ended_pid:
                return status
            time.sleep(0.005)
        self.kill()
        return os.waitpid(self.pid, 0)[1]


def core_wait_s(pid: int) -> float:
    """Seconds for which a process could run but had no core: its longest-waiting thread.

    0 where the kernel does not count it (``/proc/PID/task/*/schedstat``), or it has ended.
    """
    longest = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                longest = max(longest, int((thread / "schedstat").read_text().split()[1]))
    return longest * 1e-9
