"""What must hold after every blow, and how long it takes until it does."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.daemon_process import GIVE_UP_S, DaemonProcess
from tests.chaos.simulated_daemon import HARDWARE, SLOTS
from tests.support import endtoend, processes
from tlmd.data.errors import BadInput, Failed, NoDaemon
from tlmd.records.store import RecordStore
from tlmd.tlm import checkpoint

_ESSENTIAL = Counter(measurer=SLOTS, generator=1, registry=1)
_STRAYS_S = 30.0  # an actor may close files before it ends
_LOOK_S = 0.5  # looking costs time of the core that the daemon needs
_NEW = 2  # records of each job after a blow; the first may have been under way
_REAL = "real"


@dataclass
class Report:
    """What happened in a run."""

    blows: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    """Seconds from a blow until all actors are there and every job has new records on disk."""
    records: int = 0
    lost: int = 0
    """Records that were on disk before a blow and were not there later."""
    twice: int = 0
    exports: int = 0
    version: int = 0
    """Version of the newest checkpoint that was in force."""

    def summary(self) -> str:
        """The figures of a run in one line."""
        longest = max(self.recoveries, default=0.0)
        return (
            f"{sum(self.blows.values())} blows ({dict(sorted(self.blows.items()))}), "
            f"{self.records} records, {self.lost} lost, {self.twice} twice, "
            f"{self.exports} exports, checkpoint {self.version}, longest recovery {longest:.1f} s"
        )


class Checks:
    """Looks at a daemon after each blow, from outside. Failures are assertion errors."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.report = Report()
        self._daemon = daemon
        self._state_dir = daemon.state_dir
        self._store = daemon.state_dir / "records.sqlite"
        self._seen: list[str] = []

    def remember(self) -> None:
        """What is on disk now must stay there."""
        if self._store.exists():
            with RecordStore(self._store, read_only=True) as store:
                self._seen = endtoend.measured(store.all_records())

    def wait_for_recovery(self, killed: int = 0) -> float:
        """Wait until all works as before; how many seconds it took. `killed` must be replaced."""
        begin = time.monotonic()
        row = self._last_row()
        self._wait(lambda: self._actors_are_there(killed), "actors")
        self._wait(lambda: self._has_new_records(row), "records of each job")
        return time.monotonic() - begin

    def _actors_are_there(self, killed: int) -> bool:
        actors: list[dict[str, Any]] = self._daemon.status().get("actors", [])
        there = Counter(str(actor["kind"]) for actor in actors)
        return there >= _ESSENTIAL and killed not in {actor["pid"] for actor in actors}

    def _last_row(self) -> int:
        with contextlib.suppress(BadInput, Failed), RecordStore(self._store, True) as store:
            return store.last_row()
        return 0

    def _has_new_records(self, row: int) -> bool:
        self._daemon.running()  # it is started again where it has ended
        with contextlib.suppress(BadInput, Failed), RecordStore(self._store, True) as store:
            found = Counter(job_of(task_id) for _, task_id, *_ in store.packed_records(row, 10_000))
            jobs = [_REAL, *(target.fingerprint for target in HARDWARE)]
            return all(found[job] >= _NEW for job in jobs)
        return False

    def _wait(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + GIVE_UP_S
        while not condition():
            tail = self._daemon.log()[-3000:] if time.monotonic() > deadline else ""
            assert not tail, f"no {what}; {self._daemon.status()}; the log ends with: {tail}"
            time.sleep(_LOOK_S)

    def check(self, blow: str) -> None:
        """Records, jobs, checkpoint and processes are as they must be."""
        report = self.report
        with RecordStore(self._store, read_only=True) as store:
            store.check_whole()
            found = endtoend.measured(store.all_records())
        report.records = len(found)
        report.lost += len(set(self._seen) - set(found))
        report.twice += len(found) - len(set(found))
        assert not report.lost and not report.twice, f"after {blow}: {report}"
        jobs = self._daemon.running().jobs()
        assert {job["state"] for job in jobs} == {"running"}, f"after {blow}: {jobs}"
        self._check_checkpoint(blow)
        strays = self._daemon.strays
        processes.wait_for(lambda: not strays(), _STRAYS_S, f"end of {strays()} after {blow}")

    def _check_checkpoint(self, blow: str) -> None:
        versions: list[dict[str, Any]] = []
        with contextlib.suppress(NoDaemon, Failed):  # the registry may just be starting again
            versions = self._daemon.running().checkpoints()
        current = [v["version"] for v in versions if v["current"]]
        assert len(current) == 1 or not versions, f"after {blow}: {versions}"
        for version in filter(None, current):  # 0 is TLM-base, elsewhere
            checkpoint.read(self._state_dir / "checkpoints" / f"v{version:06d}", version)
            self.report.version = max(self.report.version, version)

    def check_export(self, out: Path) -> None:
        """What was found for the real job can be used: compiled, and compared with PyTorch."""
        from tlmd.export.job_export import export  # TVM and torch, which take seconds

        with endtoend.known_roofline():
            export(self._state_dir, self._daemon.real_job, out)
        document = json.loads((out / "summary.json").read_text())["e2e"]
        assert document["functions_with_record"] == document["functions"] > 0
        assert document["max_abs_err"] < 1e-3
        self.report.exports += 1


def job_of(task_id: str) -> str:
    """Whose task it is: the simulated jobs are named like their hardware."""
    name, _, _ = task_id.partition("-")
    return name if name in {target.fingerprint for target in HARDWARE} else _REAL
