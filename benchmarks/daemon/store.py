"""How the record store behaves at 1, 10 and 100 million records.

For each size: seconds to open it (its pages are not in memory then), also after its writer was
killed; acknowledged appends per second, in transactions of 8 and of 64 records, with the plans of
the batches and a job; the best record of a task, asked for the first time (cold) and again; the
counts; memory of the process.

What is appended and asked is real. What was there before is written by SQL, in the same tables and
indexes: up to 10 million records with the payload of a record without features, above that bare
rows (``--bare-above``), so that 100 million need 6 GB of disk. Everything is removed in the end.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.common import report
from benchmarks.daemon import driver
from benchmarks.daemon.simulated import TARGET
from tlmd.data import wire
from tlmd.data.types import Candidate, Outcome, Record, Status, Task, Timing
from tlmd.records.store import RecordStore

_TASKS = 2000
_FEATURES = bytes(658)
_PORTION = 1 << 20  # rows in one statement
_ASKED = 1000  # tasks
_FILL = """
WITH RECURSIVE n(x) AS (SELECT ?1 UNION ALL SELECT x + 1 FROM n WHERE x + 1 < ?2)
INSERT INTO records (task, candidate, batch, created, ok, verified, compared, seconds, payload)
SELECT 1 + x / ?3, CAST(printf('%08x', x) AS BLOB), 0, 0, x % 10 = 0, x % 10 = 0, 0,
    CASE WHEN x % 10 = 0 THEN 1 + x * 1e-9 END, ?4 FROM n
"""
_TRIGGERS = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"


@dataclass(frozen=True)
class StoreRun:
    """One size, measured in a process of its own."""

    path: Path
    records: int
    bare: bool
    seconds: float
    check: bool


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    sizes = [10**6, 10**7, 10**8]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, metavar="N")
    parser.add_argument("--bare-above", type=int, default=10**7, metavar="N")
    parser.add_argument("--checked", type=int, default=10**7, help="largest that is read whole")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each kind of appends")
    parser.add_argument("--disk", type=Path, help="folder for the stores; default: a temporary one")
    options = parser.parse_args()
    here = report.machine()
    rows = []
    for size in options.sizes:
        with driver.scratch_directory() as scratch:
            folder = options.disk or scratch
            bare, whole = size > options.bare_above, size <= options.checked
            run = StoreRun(folder / "store.sqlite", size, bare, options.seconds, whole)
            try:
                cores = frozenset(os.sched_getaffinity(0))
                driver.in_own_process(cores, None, fill, run)
                rows.append(driver.in_own_process(cores, None, measure, run))
            finally:
                for file in folder.glob("store.sqlite*"):
                    file.unlink()
        print(f"{size} records: {rows[-1]}", file=sys.stderr)
    result = {
        "benchmark": "store",
        "machine": here,
        "rows": rows,
        "ratio": rows[-1]["add 64 /s"] / 5000,
        "meaning": "appends per second at the largest size over the 5,000 that are wanted",
    }
    report.show("the record store", rows)
    report.finish(result, options.json)
    return 0


def task(number: int) -> Task:
    return Task(f"{number:032x}", f"task_{number}", 1, 1e6, "{}" * 1000, TARGET)


def record(rng: random.Random, number: int, batch: int) -> Record:
    """A record of the usual size."""
    decisions = tuple((rng.getrandbits(30), 2, 1, 1) for _ in range(9))
    seconds = tuple(rng.uniform(1e-3, 2e-3) for _ in range(7))
    timing = Timing(0.005, 0.003, 0.1, 0.0, 0.25, 0.01)
    outcome = Outcome(Status.OK, seconds, verified=True, max_abs_err=1e-6, timing=timing)
    candidate = Candidate(task(number).id, 0, decisions)
    made = Record(candidate, outcome, 3, batch, TARGET.fingerprint, candidate.id, time.time())
    return replace(made, features=_FEATURES)


def fill(run: StoreRun) -> None:
    """Make a store of so many records, without waiting for the disk."""
    rng = random.Random(0)
    with RecordStore(run.path) as store:
        store.add_tasks([task(number) for number in range(_TASKS)])
    db = sqlite3.connect(run.path, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA cache_size = -262144")
    keys = [(task(number).id, TARGET.fingerprint) for number in range(_TASKS)]
    db.executemany("INSERT INTO task_keys (task_id, fingerprint) VALUES (?, ?)", keys)
    triggers = db.execute(_TRIGGERS).fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    payload = b"" if run.bare else wire.pack(replace(record(rng, 0, 0), features=b""))
    each = max(1, run.records // _TASKS)
    for start in range(0, run.records, _PORTION):
        end = min(start + _PORTION, run.records)
        db.execute(_FILL, (start, end, each, payload))
    failed = run.records - (run.records + 9) // 10
    for key, value in (("records", run.records), ("failed", failed)):
        db.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))
    for _, statement in triggers:
        db.execute(statement)
    db.close()


def measure(run: StoreRun) -> report.Row:
    """All figures of one size."""
    _forget_pages(run.path)
    opened = _timed(lambda: RecordStore(run.path).close())
    killed = _open_after_a_kill(run.path)
    rng = random.Random(1)
    with RecordStore(run.path) as store:
        for number in range(_TASKS):  # one of each that can be read
            store.add_record(record(rng, number, 1))
        before = _resident_mb()
        appends = {size: _appends(store, rng, size, run.seconds) for size in (8, 64)}
        asked = rng.sample(range(_TASKS), k=_ASKED)
        cold, best = (sorted(_best_ms(store, number) for number in asked) for _ in range(2))
        counts = statistics.median(_timed(store.counts) for _ in range(100))
        after = _resident_mb()
        checked = _timed(store.check_whole) if run.check else 0.0
        size = run.path.stat().st_size
    return {
        "records": f"{run.records:.0e}",
        "rows": "bare" if run.bare else "whole",
        "GB": size / 1e9,
        "open s": opened,
        "killed s": killed,
        "check s": checked or "-",
        "add 8 /s": appends[8][0],
        "add 64 /s": appends[64][0],
        "CPU µs": appends[64][1],
        "best ms": statistics.median(best),
        "p99": best[int(0.99 * len(best))],
        "cold": statistics.median(cold),
        "counts ms": 1e3 * counts,
        "MB": before,
        "MB after": after,
    }


def _best_ms(store: RecordStore, number: int) -> float:
    key = task(number).key
    return 1e3 * _timed(lambda: store.best(*key))


def _appends(
    store: RecordStore, rng: random.Random, size: int, seconds: float
) -> tuple[float, float]:
    """Acknowledged records per second, in transactions of `size`, and CPU in µs for each.

    A plan and a job are written beside them. Making the records does not count.
    """
    count, batch, spent, cpu = 0, 10, 0.0, 0.0
    while spent < seconds:
        batch += 1
        tasks = rng.sample(range(_TASKS), size // 8)  # a task gets up to eight in a batch
        records = [record(rng, number, batch) for number in tasks for _ in range(8)]
        begin, cpu_begin = time.perf_counter(), time.process_time()
        store.add_records(records)
        if count % 64 == 0:
            store.put_batch(batch, wire.pack((batch, "job")))
            store.put_job("job", "running", bytes(300))
        spent += time.perf_counter() - begin
        cpu += time.process_time() - cpu_begin
        count += size
    return count / spent, 1e6 * cpu / count


def _open_after_a_kill(path: Path) -> float:
    child = os.fork()
    if child == 0:
        store = RecordStore(path)
        store.add_record(record(random.Random(2), 0, 3))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    _forget_pages(path)
    return _timed(lambda: RecordStore(path).close())


def _forget_pages(path: Path) -> None:
    """Have the system drop the file from its memory."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _resident_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


if __name__ == "__main__":
    sys.exit(main())
