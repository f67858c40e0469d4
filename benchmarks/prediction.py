"""Do the times of the tasks add up to the model's? Sum(weight x best) against end to end.

Each model is tuned, then its compiled program and the best program of each of its tasks are timed
again in turns, the tasks with the model's weights in the caches (hot) and evicted from them (cold).
The headline `ratio` is how much nearer cold comes: hot's mean error over cold's.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import pinned, report

MODELS = ("resnet18", "mobilenet-v2", "bert-tiny", "vit-s16", "bert-small")
_ROUNDS = 3
_SECONDS = 3.0
_TIME = "--time"


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--trials", type=int, default=8, help="per task (default 8)")
    parser.add_argument("--state-dir", type=Path, help="keep the records here")
    options = parser.parse_args()
    here = report.machine()
    rows = []
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        for model in options.models:
            state_dir = options.state_dir or Path(scratch) / "state"
            rows.append(_row(model, state_dir, Path(scratch) / model, options.trials))
            print(rows[-1], file=sys.stderr)
    report.show("Sum(weight x best) and end to end, milliseconds", rows)
    errors = {k: statistics.fmean(abs(row[f"{k} error"]) for row in rows) for k in ("hot", "cold")}
    result = {
        "benchmark": "prediction",
        "machine": here,
        "trials": options.trials,
        "rows": rows,
        "errors": errors,
        "ratio": errors["hot"] / errors["cold"],
        "meaning": "mean error of hot caches over that of cold ones",
    }
    report.finish(result, options.json)
    return 0


def _row(model: str, state_dir: Path, out: Path, trials: int) -> dict[str, Any]:
    import tlmd
    from tlmd.config import MeasureConfig
    from tlmd.daemon import delivery
    from tlmd.measure.cores import plan_cores
    from tlmd.records.store import RecordStore
    from tlmd.space.target import resolve

    tlmd.tune(model, trials=trials, state_dir=state_dir, out=out)
    layout = plan_cores(run=MeasureConfig().run_cores or None)
    prepared = delivery.prepare(model, None, resolve("native", len(layout.run)))
    with RecordStore(state_dir / "records.sqlite", read_only=True) as store:
        states = delivery.read_states(store, prepared.tasks)
    sums: dict[str, list[float]] = {"hot": [], "cold": []}
    whole = []
    for _ in range(_ROUNDS):
        for regime, found in sums.items():
            found.append(_sum(states, layout, regime == "cold", state_dir / "references"))
        whole.append(_end_to_end(prepared, out, layout.run))
    end_to_end = 1e3 * min(whole)
    row: dict[str, Any] = {"model": model, "tasks": len(states), "end to end": end_to_end}
    for regime, found in sums.items():
        row[regime] = 1e3 * statistics.median(found)
        row[f"{regime} error"] = row[regime] / end_to_end - 1
    return row


def _sum(states: Any, layout: Any, cold: bool, cache: Path) -> float:
    """Weighted seconds of the best programs, timed now."""
    from tlmd.measure.client import Job, Measurer
    from tlmd.measure.protocol import Limits
    from tlmd.space.space import TaskSpace
    from tlmd.types import Candidate

    weights = {s.task.id: s.task.weight for s in states}
    jobs = []
    for state in states:
        candidate = state.best.candidate if state.best else Candidate(state.task.id, 0, ())
        # The default schedule has no trace; an empty one changes nothing.
        trace = TaskSpace(state.task).trace_json(candidate) if state.best else "[[],[]]"
        jobs.append(Job(state.task, candidate, trace))
    target = states[0].task.target
    with Measurer(target, layout, cache, Limits(cold=cold), lend=True) as measurer:
        return sum(weights[job.task.id] * o.seconds for job, o in measurer.measure(jobs))


def _end_to_end(prepared: Any, out: Path, cores: tuple[int, ...]) -> float:
    """Seconds of the exported model, alone in a pinned process."""
    import numpy as np

    from tlmd import children

    library, environment = out.resolve() / "model.so", children.running_tvm(len(cores))
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        inputs = Path(scratch) / "inputs.npz"
        np.savez(inputs, *prepared.source.random_inputs(0))
        said = pinned.run(
            "prediction", _TIME, library, inputs, cores=cores, environment=environment
        )
    return float(said.split()[-1])


def _time(library: str, inputs: str) -> float:
    """The fastest of many runs in seconds."""
    import numpy as np
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())["main"]
    tensors = [tvm.runtime.tensor(array) for array in np.load(inputs).values()]
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        begin = time.perf_counter()
        machine(*tensors)
        best = min(best, time.perf_counter() - begin)
    return best


if __name__ == "__main__":
    if sys.argv[1:2] == [_TIME]:
        print(_time(*sys.argv[2:]))
        sys.exit(0)
    sys.exit(main())
