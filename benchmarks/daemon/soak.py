"""A daemon that runs for hours while misbehaving programs are measured among real ones.

One job measures a training corpus, as ``tlmd train`` does, and does not end by itself; the trainer
and the registry are at work. Beside it, jobs of misbehaving tasks come and go: their programs read
a forbidden address, abort, wait for ever, kill themselves, or take memory until there is none.
Nothing in the daemon knows of them. Once a minute the processes of the daemon are read: memory
(proportional set size, in MB), open files, threads, processes, and the share of the time in which
the slot had work.

The headline is the largest growth of memory, files, threads or processes from the second quarter
of the run to the last one (medians), over what they were: 0 means flat.

    python -m benchmarks.soak --hours 2 --state STATE --json benchmarks/daemon/data/soak.json
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import tvm
from tvm import te, tirx

import tlmd
from benchmarks.common import report
from tlmd.client.job import Job
from tlmd.data.types import TargetInfo, Task
from tlmd.lowering.identity import task_id
from tlmd.records.store import RecordStore
from tlmd.records.task_file import save_tasks
from tlmd.space.hardware.target import resolve

_N = 256
_BOMB_BYTES = 256 << 20  # for each of the elements
_SETTINGS = {
    "measure.run_timeout": 4.0,  # what waits for ever costs so much
    "measure.baseline_timeout": 8.0,
    "measure.memory_bytes": 1 << 30,
    "daemon.niceness": 0,
}
_FLAT = ("memory_mb", "files", "threads", "processes")
_TASKS_PER_JOB = 10
_TRIALS = 4
_REAL_WEIGHT = 6.0  # a job of misbehaving tasks gets one candidate for so many real ones


def _external(kind: str, name: str, *arguments: Any) -> Any:
    return tirx.call_extern(kind, name, *arguments)


_MISBEHAVIOURS: dict[str, Callable[[], Any]] = {
    "segfault": lambda: _external("int32", "atoi", tirx.const(8, "int64")),
    "abort": lambda: _external("int32", "abort"),
    "hang": lambda: _external("int32", "pause"),
    "killed": lambda: _external("int32", "raise", 9),
    "exit": lambda: _external("int32", "_exit", 3),
    "memory": lambda: _external(
        "int64",
        "memset",
        _external("handle", "malloc", tirx.const(_BOMB_BYTES, "int64")),
        1,
        tirx.const(_BOMB_BYTES, "int64"),
    ),
}


def misbehaving_tasks(target: TargetInfo, number: int, count: int) -> list[Task]:
    """The tasks of job `number`: no two jobs have the same. Their kinds follow one another."""
    found = []
    for i in range(number * count, (number + 1) * count):
        kind = list(_MISBEHAVIOURS)[i % len(_MISBEHAVIOURS)]
        module, name = _module(_N + i, _MISBEHAVIOURS[kind]), f"soak_{kind}_{i}"
        text = str(tvm.ir.save_json(module))
        found.append(Task(task_id(module), name, 1, float(_N + i), text, target))
    return found


def _module(elements: int, misbehave: Callable[[], Any]) -> tvm.IRModule:
    """Adds what `misbehave` returns to each element."""
    a = te.placeholder((elements,), name="a")
    c = te.compute((elements,), lambda i: a[i] + misbehave().astype("float32"))
    return tvm.IRModule({"main": te.create_prim_func([a, c])})


class MisbehavingJobs:
    """Keeps one job of misbehaving tasks running beside the others."""

    def __init__(self, daemon: tlmd.Daemon, target: TargetInfo, directory: Path) -> None:
        self.jobs: list[Job] = []
        self._daemon, self._target, self._directory = daemon, target, directory

    def go_on(self) -> None:
        """Submit the next job where the last one has ended."""
        if self.jobs and self.jobs[-1].status()["state"] == "running":
            return
        number = len(self.jobs)
        file = self._directory / f"soak_{number}.tasks"
        save_tasks(file, misbehaving_tasks(self._target, number, _TASKS_PER_JOB))
        self.jobs.append(self._daemon.submit(f"soak {number}", tasks=str(file), trials=_TRIALS))


def sample(daemon: tlmd.Daemon, before: report.Row | None, begin: float) -> report.Row:
    """What the daemon and its processes hold now."""
    status = daemon.status()
    totals: Counter[str] = Counter()
    root = psutil.Process(daemon.pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            totals["memory_mb"] += process.memory_full_info().pss >> 20
            totals["files"] += process.num_fds()
            totals["threads"] += process.num_threads()
            totals["processes"] += 1
        except psutil.Error:  # it has just ended
            continue
    now = time.monotonic() - begin
    busy_s = statistics.fmean(slot["busy_s"] for slot in status["slots"])
    last_s, last_busy_s = (before["s"], before["busy_s"]) if before else (now - 1, busy_s - 1)
    return {
        "s": round(now, 1),
        **totals,
        "busy_s": round(busy_s, 1),
        "busy": round((busy_s - last_busy_s) / (now - last_s), 3),
        "version": status["version"],
        "state": status["state"],
    }


def outcomes(state_dir: Path) -> dict[str, dict[str, int]]:
    """Status -> records, of real tasks and by kind of misbehaviour."""
    found: dict[str, Counter[str]] = {}
    with RecordStore(state_dir / "records.sqlite", read_only=True) as store:
        kinds = {
            t.id: t.name.split("_")[1] if t.name.startswith("soak_") else "real"
            for t in store.tasks()
        }
        for record in store.all_records():
            kind = kinds.get(record.candidate.task_id, "real")
            found.setdefault(kind, Counter())[str(record.outcome.status)] += 1
    return {kind: dict(counts) for kind, counts in sorted(found.items())}


def growth(rows: list[report.Row], key: str) -> float:
    """The share by which the median of the last quarter is above that of the second one."""
    quarter = max(1, len(rows) // 4)
    early = statistics.median(row[key] for row in rows[quarter : 2 * quarter])
    late = statistics.median(row[key] for row in rows[-quarter:])
    return float(late / early - 1)


def main() -> int:
    """Run, print, write; the rows are also printed while it runs."""
    parser = report.parser(__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--minute", type=float, default=60.0, help="seconds between two samples")
    parser.add_argument("--state", type=Path, required=True, help="the daemon's state directory")
    parser.add_argument("--corpus", default="synthetic", help="of the real job")
    options = parser.parse_args()
    here = report.machine()
    settings = {**_SETTINGS, "tune.seed": options.seed}
    rows: list[report.Row] = []
    begin = time.monotonic()
    with tlmd.start(options.state, None, **settings) as daemon:
        daemon.submit(corpus=options.corpus, trials=1_000_000, weight=_REAL_WEIGHT)
        while not daemon.status()["slots"]:
            time.sleep(1)
        bad = MisbehavingJobs(daemon, resolve("native", 1), options.state)
        while time.monotonic() - begin < options.hours * 3600:
            bad.go_on()
            time.sleep(options.minute)
            rows.append(sample(daemon, rows[-1] if rows else None, begin))
            print(rows[-1], file=sys.stderr, flush=True)
        jobs = Counter(job.status()["state"] for job in bad.jobs)
    result = {
        "benchmark": "soak",
        "machine": here,
        "hours": options.hours,
        "jobs": dict(jobs),
        "outcomes": outcomes(options.state),
        "growth": {key: round(growth(rows, key), 3) for key in _FLAT},
        "busy": round(statistics.median(row["busy"] for row in rows), 3),
        "rows": rows,
        "meaning": "largest growth of memory, files, threads or processes; 0 is flat",
    }
    result["ratio"] = max(result["growth"].values())
    report.show("records by outcome", _table(result["outcomes"]))
    print(f"growth {result['growth']}, slot busy {result['busy']:.2f}, jobs {result['jobs']}")
    report.finish(result, options.json)
    return 0


def _table(found: dict[str, dict[str, int]]) -> list[report.Row]:
    names = sorted({name for counts in found.values() for name in counts})
    return [{"program": kind, **{n: c.get(n, 0) for n in names}} for kind, c in found.items()]


if __name__ == "__main__":
    sys.exit(main())
