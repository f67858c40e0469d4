"""Do the times of the tasks add up to the model's? Sum(weight x best) against end to end.

Each model is tuned. Then its compiled program and the best program of each of its tasks are timed
again, alternately: the tasks with the model's weights in the caches (hot) and evicted from them
(cold). The headline `ratio` says how much nearer the cold times come: hot's mean error over
cold's.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import pinned, report

_VARIED_MODELS = ("resnet18", "mobilenet-v2", "bert-tiny", "vit-s16", "bert-small")
_ROUNDS = 3
_SECONDS = 3.0
_TIME = "--time"


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("models", nargs="*", default=_VARIED_MODELS)
    parser.add_argument("--trials", type=int, default=8, help="per task (default 8)")
    parser.add_argument("--state-dir", type=Path, help="keep the records here")
    options = parser.parse_args()
    here = report.machine()
    rows = []
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        for model in options.models:
            state_dir = options.state_dir or Path(scratch) / "state"
            rows.append(_prediction_row(model, state_dir, Path(scratch) / model, options.trials))
            print(rows[-1], file=sys.stderr)
    report.show("Sum(weight x best) and end to end, milliseconds", rows)
    errors = {k: statistics.fmean(abs(r[f"{k} error"]) for r in rows) for k in ("hot", "cold")}
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


def _prediction_row(model: str, state_dir: Path, out: Path, trials: int) -> dict[str, Any]:
    import tlmd
    from tlmd.data.config import MeasureConfig
    from tlmd.data.model_spec import ModelSpec
    from tlmd.export import job_export
    from tlmd.lowering.acceptance import accept
    from tlmd.measure.cores.core_plan import plan_cores
    from tlmd.records.store import RecordStore
    from tlmd.space.hardware.target import resolve

    tlmd.tune(model, trials=trials, state_dir=state_dir, out=out)
    layout = plan_cores(run=MeasureConfig().run_cores or None)
    (accepted,) = accept(ModelSpec(model), resolve("native", len(layout.run))).models
    (prepared,) = accepted.lowered
    with RecordStore(state_dir / "records.sqlite", read_only=True) as store:
        states = job_export.read_states(store, prepared.tasks)
    sums: dict[str, list[float]] = {"hot": [], "cold": []}
    whole = []
    for _ in range(_ROUNDS):
        for regime, found in sums.items():
            found.append(_weighted_sum(states, layout, regime == "cold", state_dir / "references"))
        whole.append(_whole_model(prepared, out, layout.run))
    end_to_end = 1e3 * min(whole)
    row: dict[str, Any] = {"model": model, "tasks": len(states), "end to end": end_to_end}
    for regime, found in sums.items():
        row[regime] = 1e3 * statistics.median(found)
        row[f"{regime} error"] = row[regime] / end_to_end - 1
    return row


def _weighted_sum(states: Any, layout: Any, cold: bool, cache: Path) -> float:
    """Weighted seconds of the best programs, timed now."""
    from tlmd.data.config import MeasureConfig
    from tlmd.data.types import MeasureInput
    from tlmd.measure.measurer import Measurer
    from tlmd.space.space import TaskSpace

    with Measurer(layout, cache, MeasureConfig(cache="cold" if cold else "hot")) as measurer:
        found = []
        for state in states:
            # The default schedule has no trace; an empty one changes nothing.
            trace, candidate_id = "[[],[]]", "default"
            if state.best is not None:
                trace = TaskSpace(state.task).trace_json(state.best.candidate)
                candidate_id = state.best.candidate.id
            future = measurer.submit(state.task, MeasureInput(candidate_id, trace))
            found.append((state.task.weight, future))
        return float(sum(weight * future.result().seconds for weight, future in found))


def _whole_model(prepared: Any, out: Path, cores: tuple[int, ...]) -> float:
    """Seconds of the exported model, alone in a pinned process."""
    import numpy as np

    from tlmd.processes import children

    library, environment = out.resolve() / "model.so", children.running_tvm(len(cores))
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        inputs = Path(scratch) / "inputs.npz"
        np.savez(inputs, *prepared.source.random_inputs(0))
        said = pinned.run(
            "prediction", _TIME, library, inputs, cores=cores, environment=environment
        )
    return float(said.split()[-1])


def _fastest_run(library: str, inputs: str) -> float:
    """Seconds of the fastest of many runs."""
    import numpy as np
    import tvm

    from tlmd.export.library import load_machine

    machine = load_machine(Path(library))["main"]
    tensors = [tvm.runtime.tensor(array) for array in np.load(inputs).values()]
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        begin = time.perf_counter()
        machine(*tensors)
        best = min(best, time.perf_counter() - begin)
    return best


if __name__ == "__main__":
    if sys.argv[1:2] == [_TIME]:
        print(_fastest_run(*sys.argv[2:]))
        sys.exit(0)
    sys.exit(main())
