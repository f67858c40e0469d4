"""The daemon that the monkey strikes, which is started again as a supervisor does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.simulated_daemon import HARDWARE
from tests.support import endtoend, processes
from tlmd.client.connection import Daemon, find
from tlmd.data.errors import Failed, NoDaemon
from tlmd.data.types import Task
from tlmd.records.task_file import save_tasks

GIVE_UP_S = 180.0  # for one recovery; then the run ends
_TASKS = 6  # of a simulated job
_MODEL = "tests.chaos.real_model:make"


class DaemonProcess:
    """A daemon on `state_dir` with three jobs, its processes, and what it has put on disk.

    `place` has what does not belong to its disk: its log, its clock, and the tasks of its jobs.
    """

    def __init__(self, state_dir: Path, place: Path, checkpoint: Path) -> None:
        self.state_dir = state_dir
        self.clock = place / "clock"
        self._place = place
        self._log_file = place / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None
        root = str(endtoend.ROOT)
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "clock"), root]),
            "CHAOS_CLOCK": str(self.clock),
            "TLMD_GENERATE__CHECKPOINT": str(checkpoint),
        }
        self.real_job = ""

    def submit_jobs(self) -> None:
        """Start a real job, and one on each simulated hardware; none ends by itself."""
        daemon = self.running()
        self.real_job = daemon.submit(_MODEL, trials=1_000_000).id
        for target, weight in zip(HARDWARE, (1.0, 3.0), strict=True):
            file = self._place / f"{target.fingerprint}.tasks"
            ids = [f"{target.fingerprint}-{i}" for i in range(_TASKS)]
            save_tasks(file, [Task(i, i, 1, 1e6, "{}", target) for i in ids])
            daemon.submit(target.fingerprint, tasks=str(file), trials=1_000_000, weight=weight)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def running(self) -> Daemon:
        """The daemon; it is started again where it has ended."""
        deadline = time.monotonic() + GIVE_UP_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                self.launch()
            daemon = find(self.state_dir)
            if daemon is not None and daemon.pid == self.pid:
                return daemon
            time.sleep(0.1)
        raise AssertionError(f"no daemon: {self.log()[-800:]}")

    def launch(self) -> None:
        """Start its process."""
        command = [sys.executable, "-m", "tests.chaos.simulated_daemon", str(self.state_dir)]
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=endtoend.ROOT, env=self._environment, stdout=log, stderr=log
            )

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        assert self._process is not None
        code = self._process.wait(GIVE_UP_S)
        self._process = None
        return code

    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    # its processes

    def actors(self, *kinds: str) -> list[int]:
        """The pids of its actors, of these kinds or of all; waits until there is one."""
        while True:
            actors: list[dict[str, Any]] = self.running().status()["actors"]
            if found := [int(a["pid"]) for a in actors if not kinds or a["kind"] in kinds]:
                return found
            time.sleep(0.1)

    def of_ray(self) -> list[int]:
        """The pids of Ray's own two processes; waits until it has them."""
        while len(found := self._named("raylet", "gcs_server")) < 2:
            self.running()
            time.sleep(0.1)
        return found

    def _named(self, *names: str) -> list[int]:
        found = []
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has just ended
                found += [process.pid] * (process.name() in names)
        return found

    def servers(self) -> list[int]:
        """The pids of its measuring servers."""
        return [
            p for p in self._with("tlmd.measure.server.server") if not self._is_child_of_server(p)
        ]

    def candidates(self) -> list[int]:
        """The pids of what the servers have forked: each builds or times one candidate."""
        return [p for p in self._with("tlmd.measure.server.server") if self._is_child_of_server(p)]

    def _with(self, text: str) -> list[int]:
        return [int(line.split()[0]) for line in processes.of(self.state_dir) if text in line]

    def _is_child_of_server(self, pid: int) -> bool:
        with contextlib.suppress(psutil.Error):
            return "tlmd.measure.server.server" in " ".join(psutil.Process(pid).parent().cmdline())
        return False

    def strays(self) -> list[str]:
        """Processes of earlier daemons. Ray's agents need a minute to see that they are alone."""
        own = {self.pid}
        with contextlib.suppress(psutil.Error):
            own |= {p.pid for p in psutil.Process(self.pid).children(recursive=True)}
        found = [line for line in processes.of(self.state_dir) if "agent" not in line.lower()]
        return [line for line in found if int(line.split()[0]) not in own]

    def status(self) -> dict[str, Any]:
        """Its status; empty while it does not answer."""
        with contextlib.suppress(NoDaemon, Failed):
            return self.running().status()
        return {}
