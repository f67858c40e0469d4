"""Records per second with 1 to 100 slots against N / 0.25 s: does the daemon keep up?

The slots are simulated: real Ray actors that sleep 0.25 s per candidate instead of timing it, and a
generators that make up candidates of the usual size, since two cores cannot run TVM for 100 slots.
Everything else is real: the actors' start, orders and answers on the wire, the pipeline, the record
store and the registry. The tasks are those of the training corpus. There is no training.

Each number of slots has a process of its own. Starting a slot costs about a second of CPU; what is
measured begins when all have joined. The daemon's thread is metered from within: what share of the
wall clock it waits, sends orders, takes in answers, commits, and decides.
"""

from __future__ import annotations

import cProfile
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tlmd import wire
from tlmd.pipeline.orders import (
    BaselineOrder,
    Done,
    Event,
    Kind,
    MeasureOrder,
    Order,
    WriteOrder,
    Written,
)
from tlmd.types import (
    Baseline,
    Candidate,
    Outcome,
    Proposal,
    Record,
    Status,
    TargetInfo,
    Task,
    Timing,
)

SECONDS = 0.25  # per candidate
TARGET = TargetInfo("{}", "cpu", "x86_64", "avx2", 256, 1, 1 << 15, 1 << 20, 1 << 25, "simulated")

_ALONE = "--as-one"
_TRACE = "x" * 5000  # of the usual length
_CLAIM = 32  # slots at which the rate has to be linear
_PER_GENERATOR = 32  # slots
_SETTLE_S = 8.0
_PROFILE_S = 20.0
_LOOK_S = 0.5  # how often the daemon makes its status anew


class SleepingSlot:
    """Stands in for `MeasurerActor`: sleeps instead of measuring, one candidate at a time."""

    def __init__(self, *_arguments: Any) -> None:
        self._turn = threading.Lock()
        self._random = random.Random(os.getpid())

    def describe(self) -> dict[str, Any]:
        """The same hardware everywhere."""
        return {"target": wire.pack(TARGET), "cores": ()}

    def measure(self, data: bytes) -> list[bytes]:
        """Carry out a `MeasureOrder` in its time."""
        return [self._measure() for _ in wire.unpack(MeasureOrder, data).proposals]

    def _measure(self) -> bytes:
        with self._turn:
            time.sleep(SECONDS)
        seconds = tuple(self._random.uniform(1e-3, 2e-3) for _ in range(7))
        timing = Timing(0.005, 0.003, 0.1, 0.0, SECONDS, 0.01)
        return wire.pack(
            Outcome(Status.OK, seconds, verified=True, max_abs_err=1e-6, timing=timing)
        )

    def baseline(self, data: bytes) -> bytes:
        """Carry out a `BaselineOrder`."""
        task = wire.unpack(BaselineOrder, data).task
        return wire.pack(Baseline(task.id, 0.01, task.target.fingerprint))


class QuickGenerator:
    """Stands in for `GeneratorActor`: makes up candidates that are like no others."""

    def __init__(self, _registry: Any, _config: dict[str, Any], seed: int) -> None:
        self._random = random.Random(seed)

    def describe(self) -> dict[str, Any]:
        """There is one version only."""
        return {"version": 0}

    def write(self, data: bytes) -> bytes:
        """Carry out a `WriteOrder`."""
        order = wire.unpack(WriteOrder, data)
        proposals = tuple(self._proposal(order.task.id) for _ in range(order.count))
        return wire.pack(Written(proposals, (), 0))

    def _proposal(self, task_id: str) -> Proposal:
        decisions = tuple((self._random.getrandbits(30), 2, 1, 1) for _ in range(9))
        candidate = Candidate(task_id, 0, decisions)
        return Proposal(candidate, _TRACE, candidate.id[:16], version=0)

    def swap(self, _blob: Any) -> int:
        """Nothing to swap."""
        return 0


@dataclass
class Meter:
    """Seconds of one thread by what it did; ``waiting`` is what was left of the wall clock."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, seconds: float) -> None:
        """So much more of it."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds


class MeteredCrew:
    """A cluster whose calls are timed; waiting for events is not work, taking them in is."""

    def __init__(self, cluster: Any, meter: Meter) -> None:
        self._cluster = cluster
        self._meter = meter

    def now(self) -> float:
        return float(self._cluster.now())

    def send(self, worker: str, order: Order) -> None:
        begin = time.perf_counter()
        self._cluster.send(worker, order)
        self._meter.add("sending", time.perf_counter() - begin)

    def wait(self, seconds: float) -> list[Event]:
        begin, worked = time.perf_counter(), time.thread_time()
        events: list[Event] = self._cluster.wait(seconds)
        worked = time.thread_time() - worked
        self._meter.add("answers", worked)
        self._meter.add("waiting", time.perf_counter() - begin - worked)
        return events

    def interrupt_training(self) -> None:
        self._cluster.interrupt_training()


class MeteredStore:
    """A record store whose writes are timed."""

    def __init__(self, store: Any, meter: Meter) -> None:
        self._store = store
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add_records(self, records: Iterable[Record]) -> None:
        """Timed."""
        begin = time.perf_counter()
        self._store.add_records(records)
        self._meter.add("store", time.perf_counter() - begin)

    def put_batch(self, number: int, payload: bytes) -> None:
        """Timed."""
        begin = time.perf_counter()
        self._store.put_batch(number, payload)
        self._meter.add("store", time.perf_counter() - begin)


def main(arguments: list[str]) -> int:
    """Measure, print, write."""
    from benchmarks import report

    parser = report.parser(__doc__)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 32, 100], metavar="N")
    parser.add_argument("--seconds", type=float, default=40.0, help="measured per N (default 40)")
    parser.add_argument(
        "--tasks", type=int, default=359, help="so many of the campaign's tasks (default 359)"
    )
    parser.add_argument("--profile", type=Path, metavar="FILE", help="cProfile of the last N")
    options = parser.parse_args(arguments)
    here = report.machine()
    rows = []
    for count in options.slots:
        rows.append(_in_a_process(count, options, count == options.slots[-1]))
        print(f"{count} slots: {rows[-1]['records/s']:.1f} records/s", file=sys.stderr)
    report.show(f"simulated slots, {SECONDS} s per candidate", [_without(row) for row in rows])
    report.show(
        "the daemon's thread, percent of the wall clock",
        [{"slots": str(row["slots"])} | row["thread %"] for row in rows],
    )
    claim = max(
        (r for r in rows if r["slots"] <= _CLAIM), key=lambda r: r["slots"], default=rows[0]
    )
    result = {
        "benchmark": "scale",
        "machine": here,
        "seconds": options.seconds,
        "rows": rows,
        "ratio": claim["of linear"],
        "meaning": f"records per second with {claim['slots']} slots over what so many can do",
    }
    report.finish(result, options.json)
    return 0


def _without(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "thread %"}


def _in_a_process(count: int, options: Any, last: bool) -> dict[str, Any]:
    """One number of slots; Ray is started anew."""
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        out = Path(scratch) / "row.json"
        profile = str(options.profile.absolute()) if last and options.profile else ""
        facts = [scratch, str(count), str(options.seconds), str(options.tasks), profile]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.scale", _ALONE, *facts],
            cwd=Path(__file__).parents[1],
            capture_output=True,  # Ray warns of many actors
            text=True,
            check=False,
        )
        if done.returncode or not out.exists():
            raise SystemExit(f"{count} slots failed: {done.stderr[-2000:]}")
        row: dict[str, Any] = json.loads(out.read_text())
    return row


def _alone(scratch: Path, count: int, seconds: float, tasks: int, profile: str) -> None:
    """Start everything, measure for `seconds`, write ``row.json``."""
    from actors import session
    from tlmd.config import Config, DaemonConfig, TrainConfig
    from tlmd.daemon.trace import Trace
    from tlmd.records.store import RecordStore

    generators = DaemonConfig(generators=_generators(count))
    settings = session.Settings(
        Config(train=TrainConfig(enabled=False), daemon=generators),
        scratch,
        slot_class="benchmarks.scale:SleepingSlot",
        slot_count=count,
        generator_class="benchmarks.scale:QuickGenerator",
    )
    session.prepare(settings)
    from actors.cluster import Cluster

    with (
        closing(Cluster(settings)) as cluster,
        RecordStore(scratch / "records.sqlite") as store,
        closing(Trace(scratch / "trace.jsonl")) as trace,
    ):
        cluster.start()
        row = _run(cluster, store, trace, count, seconds, tasks, profile)
    (scratch / "row.json").write_text(json.dumps(row))


def _generators(count: int) -> int:
    return math.ceil(count / _PER_GENERATOR)


def _run(
    cluster: Any, store: Any, trace: Any, count: int, seconds: float, tasks: int, profile: str
) -> dict[str, Any]:
    """Wait for all slots, give them work, measure."""
    from tlmd.pipeline.board import Rules
    from tlmd.pipeline.jobs import Job
    from tlmd.pipeline.loop import Pipeline

    meter, begin = Meter(), time.monotonic()
    crew, kept = MeteredCrew(cluster, meter), MeteredStore(store, meter)
    pipeline = Pipeline(crew, kept, Rules(train=False), trace.tell)
    everybody = count + _generators(count) + 1  # and the registry
    while len(pipeline.board.workers) < everybody:
        pipeline.step(0.2)
    started = time.monotonic() - begin
    found = _tasks(tasks)
    store.add_tasks(found)
    for task in found:  # what is counted are candidates
        store.put_baseline(Baseline(task.id, 1.0, task.target.fingerprint))
    pipeline.add_job(Job("scale", trials=0, corpus=True), found)
    loop = _Loop(pipeline, store)
    loop.run(_SETTLE_S)
    row = _measured(loop, meter, count, seconds) | {"start s": started}
    if profile:
        _profile(loop, profile)
    return row


def _tasks(count: int) -> list[Task]:
    """Tasks of the training corpus, as if they were for the simulated hardware."""
    from tlmd.records.dataset import read_dataset

    found = read_dataset(Path(__file__).parent / "data" / "campaign.msgpack.gz").tasks
    return [replace(task, target=TARGET) for task in found[:count]]


def _profile(loop: _Loop, path: str) -> None:
    """Write what `cProfile` sees of the daemon's thread."""
    profiler = cProfile.Profile()
    profiler.runcall(loop.run, _PROFILE_S)
    profiler.dump_stats(path)


class _Loop:
    """The steps of the daemon's thread, its status twice a second included."""

    def __init__(self, pipeline: Any, store: Any) -> None:
        self.pipeline = pipeline
        self._store = store
        self._looked = 0.0
        self.records = 0
        self.steps = 0

    def run(self, seconds: float) -> None:
        """Go on for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.step()

    def step(self) -> None:
        """One step of the pipeline."""
        from tlmd.daemon import status

        for event in self.pipeline.step(0.2):
            if isinstance(event, Done) and isinstance(event.order, MeasureOrder):
                self.records += len(event.order.proposals)
        self.steps += 1
        if time.monotonic() > self._looked + _LOOK_S:
            self._looked = time.monotonic()
            status.snapshot(self.pipeline, [], self._store, False, 0.0)


def _measured(loop: _Loop, meter: Meter, count: int, seconds: float) -> dict[str, Any]:
    """What happens in `seconds`."""
    meter.seconds.clear()
    before, thread, begin = _so_far(loop), time.thread_time(), time.perf_counter()
    loop.run(seconds)
    wall, thread = time.perf_counter() - begin, time.thread_time() - thread
    records, steps, busy, own, others = (
        (now - then) / wall for now, then in zip(_so_far(loop), before, strict=True)
    )
    known = {name: 100 * s / wall for name, s in sorted(meter.seconds.items())}
    return {
        "slots": count,
        "generators": len(loop.pipeline.board.of(Kind.GENERATOR)),
        "records/s": records,
        "of linear": records * SECONDS / count,
        "slots busy": busy / count,
        "steps/s": steps,
        "daemon CPU": own,
        "its thread": thread / wall,
        "Ray CPU": others,
        "thread %": known | {"deciding": 100 - sum(known.values())},
    }


def _so_far(loop: _Loop) -> tuple[float, ...]:
    """Records, steps, seconds in which slots had work, CPU seconds of us and of our children."""
    board = loop.pipeline.board
    busy = sum(board.worked_s(worker.name) for worker in board.of(Kind.MEASURER))
    return loop.records, loop.steps, busy, *_cpu()


def _cpu() -> tuple[float, float]:
    """CPU seconds of this process, and of all that it has started."""
    import psutil

    own = psutil.Process()
    others = 0.0
    for process in own.children(recursive=True):
        try:
            others += sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return sum(own.cpu_times()[:2]), others


if __name__ == "__main__":
    if sys.argv[1:2] == [_ALONE]:
        _alone(
            Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]), sys.argv[6]
        )
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
