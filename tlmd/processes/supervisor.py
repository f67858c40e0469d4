"""A small process that starts a daemon again when it has died.

It ends when the daemon ends as it was told, or when restarting does not help. Nothing heavy is
imported here: this process lives as long as the daemon.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tlmd.data.errors import BadInput, Failed, Unavailable

SUPERVISOR = "TLMD_SUPERVISOR"
"""Environment variable of a daemon that has a supervisor: the supervisor's pid."""
_LOCK = "supervisor.lock"
_POLL_S = 0.2
_log = logging.getLogger("tlmd")


@dataclass(frozen=True)
class RestartPolicy:
    """When a daemon is started again. Times are seconds."""

    pause_s: float = 1.0
    """Before the first restart; each further death within the window doubles it."""
    longest_pause_s: float = 60.0
    deaths: int = 5
    """Deaths within the window after which the daemon is given up. `Unavailable` is waited for."""
    window_s: float = 600.0
    """Length of the window in which deaths are counted."""

    def pause(self, deaths: int) -> float:
        """Seconds to wait after this number of deaths within the window."""
        return float(min(self.pause_s * 2 ** (deaths - 1), self.longest_pause_s))


class Supervisor:
    """Runs a daemon's command until it ends well, is stopped or is given up.

    SIGTERM, SIGINT and SIGHUP are passed on to the daemon, which then ends; it is not started
    again. Use one per state directory: `run` raises `Failed` where another one runs.
    """

    def __init__(
        self, command: Sequence[str], state_dir: Path, policy: RestartPolicy | None = None
    ) -> None:
        self._command = list(command)
        self._state_dir = state_dir
        self._policy = policy or RestartPolicy()
        self._daemon: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def run(self) -> int:
        """Run the daemon; the exit code of its last process."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        deaths: deque[float] = deque()
        with _held_lock(self._state_dir / _LOCK):
            while True:
                code, answered = self._run_once()
                ends = code in (0, BadInput.exit_code) or self._stopping
                if ends or (not deaths and not answered):  # at the first start: a mistake
                    return code
                deaths.append(time.monotonic())
                while deaths[0] < time.monotonic() - self._policy.window_s:
                    deaths.popleft()
                how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
                if len(deaths) >= self._policy.deaths and code != Unavailable.exit_code:
                    raise Failed(
                        f"the daemon died {len(deaths)} times within "
                        f"{self._policy.window_s / 60:g} min, the last time by {how}, and is not "
                        "started again; its log says why"
                    )
                pause = self._policy.pause(len(deaths))
                _log.warning("the daemon died (%s); starting it again in %g s", how, pause)
                self._wait(pause)
                if self._stopping:
                    return 0

    def _run_once(self) -> tuple[int, bool]:
        """The exit code of one daemon, and whether it has ever answered."""
        environment = {**os.environ, SUPERVISOR: str(os.getpid())}
        self._daemon = daemon = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # a Ctrl-C reaches it through us only
        )
        if self._stopping:  # the signal came before there was a daemon
            daemon.send_signal(signal.SIGTERM)
        answered = False
        while daemon.poll() is None:
            answered = answered or self._noted_pid() == daemon.pid
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(_POLL_S)
        self._daemon = None
        return daemon.returncode, answered

    def _noted_pid(self) -> int:
        try:
            note: Any = json.loads((self._state_dir / "daemon.json").read_text())
            return int(note["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._stopping:
            time.sleep(min(_POLL_S, seconds))

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        if self._daemon is not None:
            with contextlib.suppress(ProcessLookupError):
                self._daemon.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)


def supervisor_of(state_dir: Path) -> int:
    """The pid of the supervisor that runs on a state directory; 0: none does."""
    try:
        with open(state_dir / _LOCK, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0)
    except (OSError, ValueError):
        return 0
    return 0


@contextlib.contextmanager
def _held_lock(path: Path) -> Iterator[None]:
    """Hold the supervisor's lock, which the system releases when this process ends."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = file.read().decode(errors="replace") or "unknown"
            raise Failed(
                f"a supervisor (pid {owner}) runs on {path.parent} already; `tlmd stop` stops it"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        yield
