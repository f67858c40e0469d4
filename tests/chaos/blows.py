"""The blows: what can happen to the processes, the files, the disk and the clock of a daemon."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.daemon_process import DaemonProcess
from tests.chaos.small_disk import SmallDisk
from tests.support import processes

_STOPPED_S = (0.2, 3.0)
_FULL_S = 20.0  # until the daemon says that the disk is full; before, it found room to write
_FULL = "no space left"
_LOOK_S = 5.0  # for a candidate that is just built or timed
_DAMAGED = (
    *("trace.jsonl", "daemon.json", "token", "ray_token", "jobs/*.tasks"),
    *("checkpoints/current.json", "checkpoints/v*/*", "references/*"),
)
_HOUR = 3600.0
_MOVES = (-365 * 24 * _HOUR, -24 * _HOUR, -_HOUR, -1.0, 1.0, _HOUR, 24 * _HOUR, 365 * 24 * _HOUR)

Blow = Callable[[], None]


class Blows:
    """Strikes `daemon` at random. Each blow returns when recovering can begin.

    ``killed`` is the process that the last blow ended, which another one must replace.
    """

    def __init__(self, daemon: DaemonProcess, disk: SmallDisk, rng: random.Random) -> None:
        self.killed = 0
        self._daemon = daemon
        self._disk = disk
        self._rng = rng
        self._state_dir = daemon.state_dir
        self._blows: dict[str, tuple[int, Blow]] = {
            "actor killed": (10, self._kill_actor),
            "actor stopped": (5, self._stop_actor),
            "candidate killed": (5, self._kill_candidate),
            "candidate stopped": (2, self._stop_candidate),
            "clock moved": (5, self._move_clock),
            "daemon killed": (3, self._kill_daemon),
            "daemon stopped": (4, self._stop_daemon),
            "disk filled": (4 if disk.is_small else 0, self._fill_disk),
            "file damaged": (2, self._damage_file),
            "raylet or GCS killed": (1, self._kill_ray),
            "raylet or GCS stopped": (2, self._stop_ray),
            "server killed": (5, self._kill_server),
            "server stopped": (3, self._stop_server),
            "several killed": (3, self._kill_several),
            "store cut": (1, self._cut_store),
        }

    def strike(self) -> str:
        """One blow; what it was."""
        weights = [weight for weight, _ in self._blows.values()]
        name = self._rng.choices(list(self._blows), weights)[0]
        self.killed = 0
        self._blows[name][1]()
        return name

    # processes

    def _kill_actor(self) -> None:
        self.killed = self._rng.choice(self._daemon.actors())
        _signal(self.killed, signal.SIGKILL)

    def _stop_actor(self) -> None:
        self._pause(self._rng.choice(self._daemon.actors()))

    def _kill_daemon(self) -> None:
        _signal(self._daemon.pid, signal.SIGKILL)
        self._daemon.wait()

    def _stop_daemon(self) -> None:
        self._pause(self._daemon.pid)

    def _kill_server(self) -> None:
        for pid in self._daemon.servers():
            _signal(pid, signal.SIGKILL)

    def _stop_server(self) -> None:
        self._pause(*self._daemon.servers())

    def _kill_candidate(self) -> None:
        for pid in self._candidates():
            _signal(pid, signal.SIGKILL)

    def _stop_candidate(self) -> None:
        self._pause(*self._candidates())

    def _candidates(self) -> list[int]:
        deadline = time.monotonic() + _LOOK_S
        while time.monotonic() < deadline:
            if found := self._daemon.candidates():
                return found
        return []

    def _kill_ray(self) -> None:
        """The daemon notices it and ends with the code for its supervisor."""
        _signal(self._rng.choice(self._daemon.of_ray()), signal.SIGKILL)
        assert self._daemon.wait() == 75

    def _stop_ray(self) -> None:
        self._pause(self._rng.choice(self._daemon.of_ray()))

    def _kill_several(self) -> None:
        """The daemon and some of what it has started, at the same moment."""
        others = [*self._daemon.actors(), *self._daemon.servers(), *self._daemon.of_ray()]
        pids = [self._daemon.pid, *self._rng.sample(others, 3)]
        self._rng.shuffle(pids)
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        self._daemon.wait()

    def _pause(self, *pids: int) -> None:
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        time.sleep(self._rng.uniform(*_STOPPED_S))
        for pid in pids:
            _signal(pid, signal.SIGCONT)

    # files, disk, clock

    def _damage_file(self) -> None:
        """The daemon is dead meanwhile: no program changes a file that another has open."""
        found = [p for pattern in _DAMAGED for p in self._state_dir.glob(pattern) if p.is_file()]
        self._kill_daemon()
        path = self._rng.choice(sorted(found))
        if path.exists() and (data := bytearray(path.read_bytes())):
            at = self._rng.randrange(len(data))
            if self._rng.random() < 0.5:
                del data[at:]
            else:
                data[at] ^= 1 << self._rng.randrange(8)
            path.write_bytes(bytes(data))
        print(f"  {path.relative_to(self._state_dir)}", flush=True)

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
        self._daemon.launch()
        assert self._daemon.wait() == 2, "a damaged store is refused"
        line = self._daemon.log().strip().splitlines()[-1]
        assert line.startswith("tlmd: ") and "is damaged" in line, line
        for copy, path in zip(copies, kept, strict=True):
            copy.replace(path)

    def _fill_disk(self) -> None:
        """The daemon lives, says so in one line, and waits for room."""
        pid = self._daemon.pid
        with self._disk.filled():
            if self._rng.random() < 0.5:
                self._kill_actor()
            deadline = time.monotonic() + _FULL_S
            while time.monotonic() < deadline and not any(map(_is_full, self._jobs())):
                time.sleep(0.1)
            told = [job["reason"] for job in self._jobs() if _is_full(job)]
            print(f"  {told[:1] or 'it found room in its files'}", flush=True)
        assert processes.alive(pid), (
            f"a full disk has ended the daemon: {self._daemon.log()[-800:]}"
        )
        assert all("\n" not in reason for reason in told)

    def _jobs(self) -> Sequence[dict[str, str]]:
        jobs: Sequence[dict[str, str]] = self._daemon.status().get("jobs", [])
        return jobs

    def _move_clock(self) -> None:
        clock = self._daemon.clock
        partial = clock.with_suffix(".new")
        partial.write_text(str(float(clock.read_text()) + self._rng.choice(_MOVES)))
        partial.replace(clock)


def _is_full(job: dict[str, str]) -> bool:
    return _FULL in job["reason"]


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, number)
