"""Measure the bank: candidates of strictly held-out tasks, each timed once.

`python -m benchmarks.bank_measure --state DIR [--out benchmarks/data/bank.msgpack.gz]` measures
`--candidates` of each task of `bank_tasks`: half of them random, a quarter picked by the shipped
checkpoint, a quarter near the best programs so far. It goes over all tasks again and again, 64
candidates at a time, so that it can be stopped at any moment and continued with the same command.
One core times, the others build. What it measures is never trained on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.bank_tasks import bank_tasks
from benchmarks.measured import measure_proposals
from tlmd.types import Task

_ROUND = 64
# Share of a round: random; written by the TLM; near the best so far.
_SHARES = {"random": 0.5, "picked": 0.25, "near": 0.25}


def main() -> int:
    """Measure and export."""
    parser = report.parser(__doc__)
    parser.add_argument("--state", type=Path, required=True, help="where the records are kept")
    parser.add_argument("--candidates", type=int, default=256, help="per task (default 256)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/data/bank.msgpack.gz"))
    options = parser.parse_args()
    from benchmarks.setting import pin
    from tlmd.measure.cores import plan_cores
    from tlmd.measure.measurer import Measurer
    from tlmd.records.store import RecordStore
    from tlmd.space.target import resolve

    layout = plan_cores(run=1)
    pin(layout.build)
    options.state.mkdir(parents=True, exist_ok=True)
    tasks = bank_tasks(resolve("native", 1))
    with (
        RecordStore(options.state / "records.sqlite") as store,
        Measurer(layout, options.state / "references") as measurer,
    ):
        store.add_tasks(tasks)
        writers = _writers()
        for goal in range(_ROUND, options.candidates + 1, _ROUND):
            for task in tasks:
                _extend(store, measurer, writers, task, goal)
            counts = store.export_dataset(options.out)
            print(f"{goal} of each task: {counts.records} records in {options.out}", flush=True)
    return 0


def _writers() -> dict[str, Any]:
    from tlmd.config import SHIPPED, GenerateConfig
    from tlmd.generate.generator import Generator
    from tlmd.model import checkpoint

    shipped = checkpoint.load(SHIPPED)
    return {
        "random": Generator(shipped, GenerateConfig(uniform=1, refined=0, explore=1), seed=1),
        "picked": Generator(shipped, GenerateConfig(uniform=0, refined=0, explore=0), seed=2),
        "near": Generator(shipped, GenerateConfig(uniform=0, refined=1, explore=0.5), seed=3),
    }


def _extend(store: Any, measurer: Any, writers: dict[str, Any], task: Task, goal: int) -> None:
    """Measure until the task has `goal` candidates, or its space gives no new ones."""
    from tlmd.types import Status

    known = store.records(task.id, task.target.fingerprint)
    missing = goal - sum(r.outcome.status is not Status.INVALID for r in known)
    if missing <= 0:
        return
    begin, found = time.monotonic(), []
    for kind, share in _SHARES.items():
        count = round(missing * share)
        written, _ = writers[kind].write(task, count, known)
        known = [*known, *measure_proposals(measurer, task, written)]
        found += known[-len(written) :] if written else []
    store.add_records(found)
    best = min((r.outcome.seconds for r in known), default=float("inf"))
    took = time.monotonic() - begin
    print(f"{task.name}: {len(found)} in {took:.0f} s, best {best * 1e6:.1f} us", flush=True)


if __name__ == "__main__":
    sys.exit(main())
