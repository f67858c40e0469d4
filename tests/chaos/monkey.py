"""Strikes a daemon at random, and sees that it recovers each time."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from tests.chaos.blows import Blows
from tests.chaos.checks import Checks, Report
from tests.chaos.daemon_process import DaemonProcess
from tests.chaos.small_disk import SmallDisk
from tests.support import processes

_EXPORT_EVERY = 50  # blows
_END_S = 90.0


class Monkey:
    """Owns a daemon below `folder`. `strike` does one random thing to it.

    `checkpoint` is TLM-base. Call `start` first and `stop` in the end, whatever happens.
    """

    def __init__(self, folder: Path, seed: int, checkpoint: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._disk = SmallDisk(folder / "disk")
        self._daemon = DaemonProcess(self._disk.folder / "state", folder, checkpoint)
        self._daemon.clock.write_text("0")
        self._blows = Blows(self._daemon, self._disk, random.Random(seed))
        self._checks = Checks(self._daemon)

    @property
    def report(self) -> Report:
        """What happened so far."""
        return self._checks.report

    def start(self) -> None:
        """Start the daemon and its jobs."""
        self._daemon.submit_jobs()
        took = self._checks.wait_for_recovery()
        print(f"started: first records of all jobs after {took:.1f} s", flush=True)

    def strike(self) -> str:
        """One blow, the recovery from it, and the checks; what it was."""
        report = self.report
        self._checks.remember()
        blow = self._blows.strike()
        report.recoveries.append(self._checks.wait_for_recovery(self._blows.killed))
        report.blows[blow] += 1
        self._checks.check(blow)
        number = sum(report.blows.values())
        print(
            f"{time.strftime('%H:%M:%S')} {number} {blow}: {report.recoveries[-1]:.1f} s, "
            f"{report.records} records, checkpoint {report.version}, load {os.getloadavg()[0]:.0f}",
            flush=True,
        )
        if number % _EXPORT_EVERY == 0:
            self.check_export()
        return blow

    def check_export(self) -> None:
        """The real job can be exported."""
        begin = time.monotonic()
        self._checks.check_export(self._folder / f"out-{self.report.exports}")
        print(f"export: {time.monotonic() - begin:.1f} s", flush=True)

    def stop(self) -> None:
        """End the daemon as a user does: nothing of it may be left."""
        state_dir = self._daemon.state_dir
        try:
            self._daemon.running().stop()
            processes.wait_for(
                lambda: not processes.of(state_dir), _END_S, f"end of {processes.of(state_dir)}"
            )
        finally:
            self._disk.remove()
