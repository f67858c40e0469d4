"""Strikes a daemon at random, restarts it as a supervisor would, and checks what must hold."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks import simulated
from tests import endtoend, processes
from tests.chaos.simulated_daemon import SLOTS
from tlmd.client.connection import Daemon, find
from tlmd.errors import Failed, NoDaemon
from tlmd.records.task_file import save_tasks
from tlmd.types import Task

_GIVE_UP_S = 180.0  # for one recovery; then the run ends
_TASKS = 6
_OTHERS = 2  # a generator and the registry
_STOPPED_S = (0.2, 3.0)
_GENTLE = ("trace.jsonl", "daemon.json", "checkpoints/current.json", "token", "ray_token")


@dataclass
class Report:
    """What happened in a run."""

    blows: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    """Seconds from a blow until all actors are there again and more records are on disk."""
    records: int = 0
    lost: int = 0
    """Records that were on disk before a blow and were not there later."""
    twice: int = 0


class Monkey:
    """Owns a daemon on `state_dir`. `strike` does one random thing to it."""

    def __init__(self, state_dir: Path, seed: int) -> None:
        self.report = Report()
        self._state_dir = state_dir
        self._rng = random.Random(seed)
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: list[str] = []
        self._killed = 0  # the actor's process of the last blow
        state_dir.mkdir(parents=True)

    def start(self) -> None:
        """Start the daemon, and two jobs that do not end by themselves."""
        daemon = self._running()
        for name, weight in (("one", 1.0), ("two", 3.0)):
            file = self._state_dir / f"{name}.tasks"
            ids = [f"{name}-{i}" for i in range(_TASKS)]
            save_tasks(file, [Task(i, i, 1, 1e6, "{}", simulated.TARGET) for i in ids])
            daemon.submit(name, tasks=str(file), trials=1_000_000, weight=weight)
        self._wait_for_records()

    def strike(self) -> str:
        """One blow, the recovery from it, and the checks; what it was."""
        blows = {
            "actor killed": (12, self._kill_actor),
            "actor stopped and resumed": (6, self._stop_actor),
            "daemon killed": (2, self._kill_daemon),
            "daemon stopped and resumed": (4, self._stop_daemon),
            "Ray's process killed": (1, self._kill_ray),
            "file damaged": (2, self._damage_file),
            "store cut": (1, self._cut_store),
        }
        weights = [weight for weight, _ in blows.values()]
        name = self._rng.choices(list(blows), weights)[0]
        self._remember()
        blows[name][1]()
        begin = time.monotonic()
        self._wait_for_actors()
        self._wait_for_records()
        self.report.blows[name] += 1
        self.report.recoveries.append(time.monotonic() - begin)
        self._check(name)
        return name

    def stop(self) -> None:
        """End the daemon as a user does; nothing of it may be left."""
        self._running().stop()
        processes.wait_for(lambda: not processes.of(self._state_dir), 90.0, "end of all processes")
        self._remember()

    # blows

    def _kill_actor(self) -> None:
        self._killed = self._actor()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._killed, signal.SIGKILL)

    def _stop_actor(self) -> None:
        self._pause(self._actor())

    def _stop_daemon(self) -> None:
        self._pause(self._pid)

    def _pause(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._rng.uniform(*_STOPPED_S))
            os.kill(pid, signal.SIGCONT)

    def _kill_daemon(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._end()

    def _kill_ray(self) -> None:
        """The daemon notices it and ends with the code for its supervisor."""
        own = psutil.Process(self._pid).children(recursive=True)
        victims = [p for p in own if p.name() in ("raylet", "gcs_server")]
        self._rng.choice(victims).kill()
        assert self._end() == 75

    def _damage_file(self) -> None:
        self._kill_daemon()
        path = self._state_dir / self._rng.choice(_GENTLE)
        if path.exists() and (data := bytearray(path.read_bytes())):
            at = self._rng.randrange(len(data))
            if self._rng.random() < 0.5:
                del data[at:]
            else:
                data[at] ^= 1 << self._rng.randrange(8)
            path.write_bytes(bytes(data))

    def _cut_store(self) -> None:
        """It is refused in one line; with the copy everything goes on."""
        self._kill_daemon()
        store = self._state_dir / "records.sqlite"
        kept = [Path(f"{store}{end}") for end in ("", "-wal") if Path(f"{store}{end}").exists()]
        copies = [Path(shutil.copy(path, f"{path}.copy")) for path in kept]
        with store.open("r+b") as file:
            file.truncate(self._rng.randrange(100, max(store.stat().st_size // 2, 101)))
        for path in kept[1:]:
            path.unlink()
        self._launch()
        assert self._end() == 2, "a damaged store is refused"
        line = self._log().strip().splitlines()[-1]
        assert line.startswith("tlmd: ") and "is damaged" in line, line
        for copy, path in zip(copies, kept, strict=True):
            copy.replace(path)

    # the daemon

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _actor(self) -> int:
        actors: list[dict[str, Any]] = []
        while not actors:
            actors = self._running().status()["actors"]
        return int(self._rng.choice(actors)["pid"])

    def _running(self) -> Daemon:
        """The daemon; it is started again where it has ended, as a supervisor does."""
        deadline = time.monotonic() + _GIVE_UP_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                self._launch()
            daemon = find(self._state_dir)
            if daemon is not None and daemon.pid == self._pid:
                return daemon
            time.sleep(0.1)
        raise AssertionError(f"no daemon: {self._log()[-800:]}")

    def _launch(self) -> None:
        command = [sys.executable, "-m", "tests.chaos.simulated_daemon", str(self._state_dir)]
        environment = {**os.environ, "PYTHONPATH": str(endtoend.ROOT)}
        with (self._state_dir / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=endtoend.ROOT, env=environment, stdout=log, stderr=log
            )

    def _end(self) -> int:
        assert self._process is not None
        code = self._process.wait(_GIVE_UP_S)
        self._process = None
        return code

    def _log(self) -> str:
        return (self._state_dir / "daemon.log").read_text(errors="replace")

    # what must hold

    def _remember(self) -> None:
        self._seen = endtoend.candidates(self._state_dir)

    def _wait_for_actors(self) -> None:
        """Until all actors have joined, and none of them is the one that was killed."""
        deadline = time.monotonic() + _GIVE_UP_S
        while True:
            with contextlib.suppress(NoDaemon, Failed):
                pids = {actor["pid"] for actor in self._running().status()["actors"]}
                if len(pids) == SLOTS + _OTHERS and self._killed not in pids:
                    return
            assert time.monotonic() < deadline, f"actors are missing: {self._log()[-1500:]}"
            time.sleep(0.1)

    def _wait_for_records(self) -> None:
        """Until every slot can have answered: some more records than now are on disk."""
        wanted = len(endtoend.candidates(self._state_dir)) + 2 * SLOTS
        deadline = time.monotonic() + _GIVE_UP_S
        while len(endtoend.candidates(self._state_dir)) < wanted:
            assert time.monotonic() < deadline, f"no records: {self._log()[-1500:]}"
            self._running()
            time.sleep(0.1)

    def _check(self, blow: str) -> None:
        found = endtoend.candidates(self._state_dir)
        report = self.report
        report.records = len(found)
        report.lost += len(set(self._seen) - set(found))
        report.twice += len(found) - len(set(found))
        assert not report.lost and not report.twice, f"after {blow}: {report}"
        with contextlib.suppress(NoDaemon, Failed):  # an actor may just be starting again
            daemon = self._running()
            assert {job["state"] for job in daemon.jobs()} == {"running"}, f"after {blow}"
            versions = [c["version"] for c in daemon.checkpoints() if c["current"]]
            assert len(versions) == 1, f"after {blow}: no whole checkpoint is in force"


def summary(report: Report) -> str:
    """The figures of a run in one line."""
    longest = max(report.recoveries, default=0.0)
    return (
        f"{sum(report.blows.values())} blows ({dict(report.blows)}), {report.records} records, "
        f"{report.lost} lost, {report.twice} twice, longest recovery {longest:.1f} s"
    )
