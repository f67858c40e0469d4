"""How far a ranking can be trusted while the machine drifts: tlmd against the stock runner.

Each of them ranks the same candidates of four tasks twice; they alternate. Meanwhile a process on
another core fills the memory bus every other few seconds, and the clock that all processes read
speeds up and slows down by 15 % (a preloaded library stretches it, as a changing frequency would).
The true times are measured first, on the undisturbed machine: one process builds all candidates of
a task and times them in interleaved rounds. Several processes do so, because the addresses of code
and arguments also affect the times. Reported are the rank correlation (Spearman) of the two
rankings, that of each ranking with the truth, and how often the chosen candidate is within 2 % of
the true best.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import pinned, report
from benchmarks.measuring.runners import (
    RUNNERS,
    CandidateBatch,
    RunnerResult,
    mixed_candidates,
    run_runner,
)
from tlmd.data import wire
from tlmd.processes import children

_TRUTH = "--truth"
_NEAR = 1.02
_PROCESSES, _ROUNDS = 5, 30  # of the truth
_MAX_SLOWDOWN = 4.0  # a candidate that is slower than the best by more gets no more rounds
_DISTURB_S, _DISTURB_BYTES = 3.0, 256 << 20
_STRETCH = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <time.h>
static int (*real)(clockid_t, struct timespec *);
int clock_gettime(clockid_t id, struct timespec *out) {
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(id, out);
  /* TVM's timer reads one of them, Python's the other. */
  if (code || (id != CLOCK_MONOTONIC && id != CLOCK_REALTIME)) return code;
  struct timespec now;
  real(CLOCK_MONOTONIC, &now);
  double t = now.tv_sec % 100000 + now.tv_nsec * 1e-9;
  double shift = 0.15 * 20.0 / 6.283185307179586 * sin(6.283185307179586 * t / 20.0);
  long long ns = out->tv_sec * 1000000000LL + out->tv_nsec + (long long)(shift * 1e9);
  out->tv_sec = ns / 1000000000LL;
  out->tv_nsec = ns % 1000000000LL;
  return code;
}
"""


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--candidates", type=int, default=40, help="per task (default 40)")
    parser.add_argument("--rankings", type=int, default=2, help="of each task (default 2)")
    options = parser.parse_args()
    if options.rankings < 2:
        parser.error("--rankings: at least 2, which are compared")
    here = report.machine()
    from benchmarks.common import setting
    from tlmd.measure.cores.core_plan import plan_cores
    from tlmd.space.hardware.target import resolve

    layout = plan_cores(run=1)
    cores = tuple(sorted(os.sched_getaffinity(0)))
    checkpoint = setting.load(options.checkpoint, options.untrained)
    count = options.candidates
    batches = [
        mixed_candidates(task, count, count // 2, checkpoint, options.seed)
        for task in setting.tasks(resolve("native", len(layout.run)))
    ]
    truth = [_true_seconds(batch, layout.run) for batch in batches]
    with _disturbed(layout.build) as environment:
        rankings = _rankings(batches, options.rankings, cores, environment)
    rows = [
        _noise_row(runner, batch.task.name, truth[i], [ranking[i] for ranking in rankings[runner]])
        for i, batch in enumerate(batches)
        for runner in RUNNERS
    ]
    report.show("rankings under drift", rows)
    means = {runner: _mean([r for r in rows if r["runner"] == runner]) for runner in RUNNERS}
    report.show("means", [{"runner": runner, **mean} for runner, mean in means.items()])
    result = {
        "benchmark": "noise",
        "machine": here,
        "candidates": count,
        "rows": rows,
        "means": means,
        "ratio": means["tlmd"]["again"] / means["stock"]["again"],
        "meaning": "rank correlation of two rankings, tlmd's over the stock runner's",
    }
    report.finish(result, options.json)
    return 0


def _rankings(
    batches: list[CandidateBatch], count: int, cores: tuple[int, ...], environment: dict[str, str]
) -> dict[str, list[list[RunnerResult]]]:
    """Rankings of each runner, with one result per batch; the runners alternate."""
    rankings: dict[str, list[list[RunnerResult]]] = {runner: [] for runner in RUNNERS}
    for number in range(count):
        for runner in RUNNERS if number % 2 else RUNNERS[::-1]:
            rankings[runner].append(run_runner(runner, batches, cores, environment))
            print(f"{runner}: ranking {number + 1}", file=sys.stderr)
    return rankings


def _noise_row(
    runner: str, task: str, truth: list[float], found: list[RunnerResult]
) -> dict[str, Any]:
    pairs = [_spearman(a.seconds, b.seconds) for i, a in enumerate(found) for b in found[i + 1 :]]
    regret = [truth[f.best] / min(truth) for f in found]
    return {
        "task": task,
        "runner": runner,
        "again": statistics.fmean(pairs),
        "with the truth": statistics.fmean(_spearman(f.seconds, truth) for f in found),
        "best within 2 %": statistics.fmean(r <= _NEAR for r in regret),
        "regret %": 100 * (statistics.fmean(regret) - 1),
        "seconds": statistics.fmean(f.wall_s for f in found),
    }


def _mean(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {
        key: statistics.fmean(row[key] for row in rows)
        for key in rows[0]
        if key not in ("task", "runner")
    }


def _spearman(one: Any, other: Any) -> float:
    """Rank correlation; failures rank last."""
    first, second = (
        np.argsort(np.argsort(np.array(v, float), kind="stable")) for v in (one, other)
    )
    return float(np.corrcoef(first, second)[0, 1])


@contextlib.contextmanager
def _disturbed(cores: tuple[int, ...]) -> Iterator[dict[str, str]]:
    """Disturb the memory bus from `cores`; yields the environment that stretches the clock."""
    disturber = multiprocessing.get_context("spawn").Process(
        target=_fill_memory_bus, args=(cores,), daemon=True
    )
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        source, library = Path(scratch) / "stretch.c", Path(scratch) / "stretch.so"
        source.write_text(_STRETCH)
        command = ["gcc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl", "-lm"]
        subprocess.run(command, check=True)
        disturber.start()
        try:
            yield {"LD_PRELOAD": str(library)}
        finally:
            disturber.terminate()
            disturber.join()


def _fill_memory_bus(cores: tuple[int, ...]) -> None:
    os.sched_setaffinity(0, cores)
    source = np.ones(_DISTURB_BYTES // 8)
    target = np.empty_like(source)
    while True:
        end = time.time() + _DISTURB_S
        while time.time() < end:
            np.copyto(target, source)
        time.sleep(_DISTURB_S)


def _true_seconds(batch: CandidateBatch, cores: tuple[int, ...]) -> list[float]:
    """Seconds of every candidate: the median over several processes that time all of them.

    Where a process is slower than the others as a whole, that difference is taken out.
    """
    environment = children.running_tvm(len(cores))
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        given = Path(scratch) / "batch"
        given.write_bytes(wire.pack(batch))
        outputs = [
            pinned.run("noise", _TRUTH, given, str(seed), cores=cores, environment=environment)
            for seed in range(_PROCESSES)
        ]
    logs = np.log([json.loads(output.splitlines()[-1]) for output in outputs])
    level = logs.mean(axis=1, keepdims=True)
    found: list[float] = np.exp(np.median(logs - level, axis=0) + level.mean()).tolist()
    return found


def _time_interleaved(given: Path, seed: int) -> list[float]:
    """Median seconds of every candidate; this process builds all of them in a random order."""
    import tvm

    from tlmd.measure.server.executable import Executable
    from tlmd.measure.server.program import parse
    from tlmd.measure.timing.timing import per_repeat
    from tlmd.space.apply_trace import build_module
    from tlmd.space.hardware.target import tvm_target

    batch = wire.unpack(CandidateBatch, given.read_bytes())
    program, target = parse(batch.task), tvm_target(batch.task.target)
    rng, count = random.Random(seed), len(batch.traces)
    programs: dict[int, Executable] = {}
    for index in rng.sample(range(count), count):
        module = build_module(program.module, batch.traces[index], target)
        programs[index] = Executable(tvm.compile(module, target).jit(), program, tvm.cpu(), False)
        programs[index].allocate(None)
    once = {i: min(one.first_run()[0], one.once()) for i, one in programs.items()}
    samples: dict[int, list[float]] = {i: [] for i in programs}
    for _ in range(_ROUNDS):
        fast = [i for i in once if once[i] < _MAX_SLOWDOWN * min(once.values())]
        for index in rng.sample(fast, len(fast)):
            samples[index].append(programs[index].run(per_repeat(once[index])))
            once[index] = min(once[index], samples[index][-1])
    return [statistics.median(samples[i] or [once[i]]) for i in range(count)]


if __name__ == "__main__":
    if sys.argv[1:2] == [_TRUTH]:
        print(json.dumps(_time_interleaved(Path(sys.argv[2]), int(sys.argv[3]))))
        sys.exit(0)
    sys.exit(main())
