"""Records per second with 1 to 100 slots against the ideal of 4 per slot: does the daemon keep up?

The slots are simulated: real Ray actors that sleep 0.25 s per candidate instead of timing it. The
generators make up candidates of the usual size, since two cores cannot run TVM for 100 slots.
Everything else is real: the start of the actors, orders and answers on the wire, the pipeline, the
record store and the registry. The tasks are those of the training corpus. Nothing is trained.

Each number of slots has a process of its own. A slot takes about a second of CPU to start;
measuring begins when all workers have joined. The daemon's thread is timed from within: the table
says what share of the wall clock it waits, sends orders, takes in answers, writes to the store, and
decides.
"""

from __future__ import annotations

import cProfile
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from actors import session
from benchmarks.common import report
from benchmarks.daemon import driver, simulated
from benchmarks.daemon.in_process import InProcessPool
from benchmarks.daemon.metering import MeteredStore, MeteredWorkerPool, ThreadSeconds
from tlmd.daemon import status
from tlmd.daemon.event_log import EventLog
from tlmd.data.config import Config, DaemonConfig, TrainConfig
from tlmd.data.types import Baseline, Task
from tlmd.measure.cores.background import BackgroundWork, OtherPrograms
from tlmd.pipeline.loop import Pipeline
from tlmd.pipeline.orders import WorkerKind, WorkerPool
from tlmd.pipeline.state import PipelineOptions
from tlmd.pipeline.tuning_jobs import TuningJob
from tlmd.records.dataset import read_dataset
from tlmd.records.store import RecordStore

_HEADLINE_SLOTS = 32  # the headline is the largest number of slots up to this one
_SLOTS_PER_GENERATOR = 32
_SETTLE_S = 8.0
_PROFILE_S = 20.0
_STATUS_S = 0.5  # how often the daemon makes its status


@dataclass(frozen=True)
class ScaleRun:
    """One number of slots, measured in a process of its own."""

    scratch: Path
    slots: int
    seconds: float
    tasks: int
    profile: Path | None
    in_process: bool

    @property
    def generators(self) -> int:
        return math.ceil(self.slots / _SLOTS_PER_GENERATOR)


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 32, 100], metavar="N")
    parser.add_argument("--seconds", type=float, default=40.0, help="measured per N (default 40)")
    parser.add_argument(
        "--tasks", type=int, default=359, help="so many of the campaign's tasks (default 359)"
    )
    parser.add_argument("--profile", type=Path, metavar="FILE", help="cProfile of the last N")
    parser.add_argument(
        "--in-process", action="store_true", help="slots without Ray: the pipeline's thread alone"
    )
    options = parser.parse_args()
    here = report.machine()
    rows = []
    for count in options.slots:
        rows.append(_row_of(count, options))
        print(f"{count} slots: {rows[-1]['records/s']:.1f} records/s", file=sys.stderr)
    result = {
        "benchmark": "scale",
        "machine": here,
        "seconds": options.seconds,
        "rows": rows,
        **_headline(rows),
    }
    _show_rows(rows)
    report.finish(result, options.json)
    return 0


def _row_of(count: int, options: Any) -> report.Row:
    """Measure one number of slots in a process of its own."""
    last = count == options.slots[-1]
    profile = options.profile.absolute() if last and options.profile else None
    cores = frozenset(os.sched_getaffinity(0))
    with driver.scratch_directory() as scratch:
        run = ScaleRun(scratch, count, options.seconds, options.tasks, profile, options.in_process)
        log = scratch / "stderr"  # Ray warns of many actors
        return driver.in_own_process(cores, log, _measure_run, run)


def _headline(rows: list[report.Row]) -> report.Row:
    small = (row for row in rows if row["slots"] <= _HEADLINE_SLOTS)
    row = max(small, key=lambda row: row["slots"], default=rows[0])
    meaning = f"records per second with {row['slots']} slots over those of as many ideal slots"
    return {"ratio": row["of linear"], "meaning": meaning}


def _show_rows(rows: list[report.Row]) -> None:
    counts = [{k: value for k, value in row.items() if k != "thread %"} for row in rows]
    report.show(f"simulated slots, {simulated.CANDIDATE_S} s per candidate", counts)
    shares = [{"slots": str(row["slots"])} | row["thread %"] for row in rows]
    report.show("the daemon's thread, percent of the wall clock", shares)


class DaemonDriver(driver.Driver):
    """The steps of the daemon's thread, with its status twice a second."""

    def __init__(self, pipeline: Pipeline, store: RecordStore) -> None:
        super().__init__(pipeline.step)
        self.pipeline = pipeline
        self._store = store
        self._status_at = 0.0
        self._background = BackgroundWork(OtherPrograms(os.sched_getaffinity(0)), 0.1)

    def step(self) -> None:
        """One step of the pipeline."""
        super().step()
        if time.monotonic() > self._status_at + _STATUS_S:
            self._status_at = time.monotonic()
            status.snapshot(self.pipeline, [], {}, self._store, False, 0.0, 1, self._background)

    def totals(self) -> tuple[float, ...]:
        """Records, steps, seconds in which slots had work, CPU seconds of us and our children."""
        state = self.pipeline.state
        busy = sum(state.busy_s(worker.name) for worker in state.workers_of(WorkerKind.MEASURER))
        return self.counts.measured, self.steps, busy, *_cpu_seconds()


def _measure_run(run: ScaleRun) -> report.Row:
    """Wait until all workers have joined, give them work, measure."""
    spent = ThreadSeconds()
    with _daemon(run, spent) as (daemon, store):
        begin = time.monotonic()  # Ray has started, its actors are starting
        daemon.wait_for_workers(run.slots + run.generators + (not run.in_process))  # a registry
        started = time.monotonic() - begin
        tasks = _corpus_tasks(run.tasks)
        store.add_tasks(tasks)
        for task in tasks:  # only candidates are counted
            store.put_baseline(Baseline(task.id, 1.0, task.target.fingerprint))
        daemon.pipeline.add_job(TuningJob("scale", trials=0, corpus=True), tasks)
        daemon.run(_SETTLE_S)
        row = _measure_rates(daemon, spent, run) | {"start s": started}
        if run.profile is not None:
            profiler = cProfile.Profile()
            profiler.runcall(daemon.run, _PROFILE_S)
            profiler.dump_stats(run.profile)
    return row


@contextmanager
def _daemon(run: ScaleRun, spent: ThreadSeconds) -> Iterator[tuple[DaemonDriver, RecordStore]]:
    """A pipeline on simulated slots and generators, and its store."""
    train = TrainConfig(enabled=False)
    with (
        _pool(run, train) as pool,
        RecordStore(run.scratch / "records.sqlite") as store,
        closing(EventLog(run.scratch / "trace.jsonl")) as trace,
    ):
        timed_pool, timed_store = MeteredWorkerPool(pool, spent), MeteredStore(store, spent)
        pipeline = Pipeline(timed_pool, timed_store, PipelineOptions(train=train), trace.emit)
        yield DaemonDriver(pipeline, store), store


@contextmanager
def _pool(run: ScaleRun, train: TrainConfig) -> Iterator[WorkerPool]:
    if run.in_process:
        with closing(InProcessPool(run.slots, run.generators)) as timers:
            yield timers
        return
    settings = session.Settings(
        Config(train=train, daemon=DaemonConfig(generators=run.generators)),
        run.scratch,
        slot_class=simulated.SLOT,
        slot_count=run.slots,
        generator_class=simulated.GENERATOR,
    )
    with driver.running_cluster(settings) as cluster:
        yield cluster


def _corpus_tasks(count: int) -> list[Task]:
    """Tasks of the training corpus, as if they were for the simulated hardware."""
    found = read_dataset(
        Path(__file__).parents[1] / "learning" / "data" / "campaign.msgpack.gz"
    ).tasks
    return [replace(task, target=simulated.TARGET) for task in found[:count]]


def _measure_rates(daemon: DaemonDriver, spent: ThreadSeconds, run: ScaleRun) -> report.Row:
    """What happens per second in `run.seconds`."""
    spent.seconds.clear()
    before, thread, begin = daemon.totals(), time.thread_time(), time.perf_counter()
    daemon.run(run.seconds)
    wall, thread = time.perf_counter() - begin, time.thread_time() - thread
    records, steps, busy, own_cpu, ray_cpu = (
        (now - then) / wall for now, then in zip(daemon.totals(), before, strict=True)
    )
    known = {name: 100 * s / wall for name, s in sorted(spent.seconds.items())}
    return {
        "slots": run.slots,
        "generators": len(daemon.pipeline.state.workers_of(WorkerKind.GENERATOR)),
        "records/s": records,
        "of linear": records * simulated.CANDIDATE_S / run.slots,
        "slots busy": busy / run.slots,
        "steps/s": steps,
        "daemon CPU": own_cpu,
        "its thread": thread / wall,
        "ms/record": 1000 * thread / wall / records if records else math.inf,
        "Ray CPU": ray_cpu,
        "thread %": known | {"deciding": 100 - sum(known.values())},
    }


def _cpu_seconds() -> tuple[float, float]:
    """CPU seconds of this process, and of all processes that it has started."""
    own = psutil.Process()
    others = 0.0
    for process in own.children(recursive=True):
        try:
            others += sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return sum(own.cpu_times()[:2]), others


if __name__ == "__main__":
    sys.exit(main())
