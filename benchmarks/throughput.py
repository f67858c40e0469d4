"""Measured candidates per second per core: tlmd against MetaSchedule's `tune_tir`.

Both tune the same tasks with the same number of trials, one task after the other in turns, on the
same cores. tlmd is the pipeline with its actors (TLM, ranker, measurer, verification, records; no
training); the peer is `tune_tir` as it comes (evolutionary search, its own cost model), with as
many builders as there are cores. Loading TVM counts for neither, the processes that `tune_tir`
starts for building and running count. The peer is spared one thing that it does as it comes: its
builders load the intrinsics of every architecture (24 s, and on a busy machine its time limit for a
build).

A rate is measured candidates (failed builds and runs included) / wall clock / cores, where cores
are all that either may use: for tlmd the slot and the building cores together.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks import report

_PEER, _US = "--as-peer", "--as-us"


def main(arguments: list[str]) -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--trials", type=int, default=64, help="per task (default 64)")
    options = parser.parse_args(arguments)
    here = report.machine()
    from benchmarks import setting
    from tlmd.measure.cores import plan_cores
    from tlmd.space.target import resolve

    everything = tuple(sorted(os.sched_getaffinity(0)))
    layout = plan_cores()
    rows = []
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        for number, task in enumerate(setting.tasks(resolve("native", len(layout.run)))):
            place = Path(scratch) / str(number)
            place.mkdir()
            ours = _ours(task, everything, options, place)
            peer = _peer(task, everything, options, place)
            rates = [r["measured"] / r["seconds"] / len(everything) for r in (ours, peer)]
            rows.append(_row(task.name, ours, peer, rates))
            print(f"{task.name}: {rates[0]:.2f} against {rates[1]:.2f}", file=sys.stderr)
    report.show("measured candidates per second per core", rows)
    result = {
        "benchmark": "throughput",
        "machine": here,
        "trials": options.trials,
        "rows": rows,
        "ratio": report.geometric_mean(row["ratio"] for row in rows),
        "meaning": "tlmd's rate over tune_tir's, geometric mean over the tasks",
    }
    report.finish(result, options.json)
    return 0


def _row(
    name: str, ours: dict[str, Any], peer: dict[str, Any], rates: list[float]
) -> dict[str, Any]:
    row: dict[str, Any] = {"task": name}
    for who, result, rate in (("tlmd", ours, rates[0]), ("peer", peer, rates[1])):
        row |= {
            f"{who} measured": result["measured"],
            f"{who} s": result["seconds"],
            f"{who} /s/core": rate,
            f"{who} best us": result["best_us"],
        }
    return {**row, "ratio": rates[0] / rates[1]}


def _ours(task: Any, cores: tuple[int, ...], options: Any, place: Path) -> dict[str, Any]:
    """The daemon's pipeline and actors on one task, in a process of their own."""
    from tlmd.workloads.corpus import save_tasks

    save_tasks(place / "task", [task])
    checkpoint = str(options.checkpoint.absolute()) if options.checkpoint else ""
    arguments = [str(place), checkpoint, str(options.trials), str(options.seed)]
    return _in_a_process(_US, arguments, cores, task.name)


def _peer(task: Any, cores: tuple[int, ...], options: Any, place: Path) -> dict[str, Any]:
    """`tune_tir` in a process of its own that may use all cores."""
    (place / "module.json").write_text(task.module)
    arguments = [str(place), task.target.spec, str(options.trials), str(options.seed)]
    return _in_a_process(_PEER, arguments, cores, task.name)


def _in_a_process(
    role: str, arguments: list[str], cores: tuple[int, ...], name: str
) -> dict[str, Any]:
    os.sched_setaffinity(0, cores)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.throughput", role, *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"measured"')]
    if done.returncode or not lines:
        raise SystemExit(f"{role} failed on {name}: {done.stderr[-500:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _be_us(place: Path, checkpoint: str, trials: int, seed: int) -> None:
    from actors import session
    from tlmd import config

    flags = {"train.enabled": False, "tune.seed": seed, "generate.checkpoint": checkpoint}
    loaded = config.load(flags=flags, environment={})
    settings = session.Settings(loaded, place)
    session.prepare(settings)
    from actors.cluster import Cluster
    from tlmd.pipeline.jobs import Job
    from tlmd.pipeline.loop import Pipeline, Rules
    from tlmd.pipeline.orders import Kind
    from tlmd.records.store import RecordStore
    from tlmd.workloads.corpus import load_tasks

    with closing(Cluster(settings)) as cluster, RecordStore(place / "records.sqlite") as store:
        cluster.start()
        pipeline = Pipeline(cluster, store, Rules(train=False))
        while not all(map(pipeline.board.of, (Kind.GENERATOR, Kind.MEASURER))):
            pipeline.step(0.2)
        begin = time.perf_counter()
        job = Job("throughput", trials)
        tasks = load_tasks(place / "task")
        store.add_tasks(tasks)
        pipeline.add_job(job, tasks)
        while not pipeline.is_idle:
            pipeline.step(0.2)
        seconds = time.perf_counter() - begin
    (state,) = job.tasks
    figures = {"measured": state.trials, "seconds": seconds, "best_us": state.best_seconds * 1e6}
    print(json.dumps(figures))


def _register_intrinsics() -> None:
    from tlmd.space import intrinsics

    intrinsics.register(platform.machine())


def _be_the_peer(place: Path, spec: str, trials: int, seed: int) -> None:
    import tvm
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    _register_intrinsics()

    means: list[float] = []

    @derived_object
    class Counter(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        """Keeps the mean seconds of all that came back from the device."""

        def apply(self, *event: Any) -> None:
            for result in event[-1]:
                seconds = [float(s) for s in result.run_secs or ()]
                means.append(sum(seconds) / len(seconds) if seconds else float("inf"))

    module = tvm.ir.load_json((place / "module.json").read_text())
    module = tvm.IRModule({"main": module["main"].with_attr("global_symbol", "main")})
    workers = len(os.sched_getaffinity(0))
    begin = time.perf_counter()
    ms.tune_tir(
        module,
        tvm.target.Target(json.loads(spec)),
        str(place / "peer"),
        max_trials_global=trials,
        builder=ms.builder.LocalBuilder(max_workers=workers, initializer=_register_intrinsics),
        measure_callbacks=[*ms.MeasureCallback.create("default"), Counter()],
        num_tuning_cores=workers,
        seed=seed,
    )
    seconds = time.perf_counter() - begin
    figures = {"measured": len(means), "seconds": seconds, "best_us": min(means) * 1e6}
    print(json.dumps(figures))


if __name__ == "__main__":
    if sys.argv[1:2] == [_PEER]:
        _be_the_peer(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
        sys.exit(0)
    if sys.argv[1:2] == [_US]:
        _be_us(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
