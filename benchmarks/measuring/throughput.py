"""Measured candidates per second per slot: tlmd against MetaSchedule's stock builder and runner.

Both time the same candidates on the same cores, one after the other. Half of the candidates are
picked by TLM and cost model, half are random. tlmd also verifies each candidate against the
unscheduled program, times that program first, and compares the finalists; all of it counts. There
is one slot: each of the two has its run core and the builders' cores. ``slot ms`` says for how long
a candidate holds the slot. Where there are enough cores to build on, only that time matters.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from benchmarks.common import report
from benchmarks.measuring.runners import (
    RUNNERS,
    CandidateBatch,
    RunnerResult,
    mixed_candidates,
    run_runner,
)


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--trials", type=int, default=64, help="per task (default 64)")
    options = parser.parse_args()
    here = report.machine()
    from benchmarks.common import setting
    from tlmd.measure.cores.core_plan import plan_cores
    from tlmd.space.hardware.target import resolve

    cores = tuple(sorted(os.sched_getaffinity(0)))
    checkpoint = setting.load(options.checkpoint, options.untrained)
    rows = []
    for task in setting.tasks(resolve("native", len(plan_cores(run=1).run))):
        count = options.trials
        batch = mixed_candidates(task, count, count // 2, checkpoint, options.seed)
        timed = {runner: run_runner(runner, [batch], cores)[0] for runner in RUNNERS}
        rows.append(_throughput_row(batch, timed))
        print(f"{task.name}: {rows[-1]['ratio']:.2f}", file=sys.stderr)
    stages = {row["task"]: row.pop("stages") for row in rows}
    report.show("measured candidates per second and slot", rows)
    spent = [
        {"task": name, **{stage: 1e3 * seconds for stage, seconds in found.items()}}
        for name, found in stages.items()
    ]
    report.show("milliseconds of each stage of a candidate (tlmd)", spent)
    result = {
        "benchmark": "throughput",
        "machine": here,
        "trials": options.trials,
        "rows": rows,
        "stages": stages,
        "slot_ratio": report.geometric_mean(row["slot ratio"] for row in rows),
        "ratio": report.geometric_mean(row["ratio"] for row in rows),
        "meaning": "tlmd's rate over the stock runner's, geometric mean over the tasks",
    }
    report.finish(result, options.json)
    return 0


def _throughput_row(batch: CandidateBatch, timed: dict[str, RunnerResult]) -> dict[str, Any]:
    row: dict[str, Any] = {"task": batch.task.name, "candidates": len(batch.candidates)}
    rates, held = {}, {}
    for runner, found in timed.items():
        rates[runner] = len(found.seconds) / found.wall_s
        held[runner] = found.stages["run"]
        row[f"{runner} /s"] = rates[runner]
        row[f"{runner} slot ms"] = 1e3 * held[runner]
        row[f"{runner} failed"] = sum(s == float("inf") for s in found.seconds)
    return {
        **row,
        "ratio": rates["tlmd"] / rates["stock"],
        "slot ratio": held["stock"] / held["tlmd"],
        "stages": timed["tlmd"].stages,
    }


if __name__ == "__main__":
    sys.exit(main())
