"""`ms.tune_tir` with the TLM as its search strategy and without, on a convolution.

`python -m benchmarks.tune_tir [--trials 16] [--seeds 3] [--json FILE]`. Builder and runner are
MetaSchedule's in both. What each of them found is then timed in interleaved rounds. The headline
`ratio` is the stock program's time over that of the TLM's, geometric mean over the seeds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import peer, report


def main() -> int:
    """Tune, compare, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    from benchmarks.common import setting
    from tlmd.measure.cores.core_plan import plan_cores
    from tlmd.measure.measurer import Measurer
    from tlmd.space.hardware.target import resolve

    machine, layout = report.machine(), plan_cores(run=1)
    task = next(t for t in setting.tasks(resolve("native", 1)) if t.name.startswith("conv2d"))
    rows = []
    for seed in range(options.seed, options.seed + options.seeds):
        found, seconds = {}, {}
        for strategy in (peer.STOCK, peer.TLM):
            begin = time.monotonic()
            cores = (*layout.run, *layout.build)
            found[strategy] = peer.tune(task, options.trials, seed, cores, strategy)
            seconds[f"{strategy}_s"] = round(time.monotonic() - begin, 1)
        with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
            with Measurer(layout, Path(scratch)) as measurer:
                rows.append({"seed": seed, **_compared(measurer, task, found), **seconds})
    both = [row for row in rows if row["stock_us"] and row["tlm_us"]]
    document = {
        "ratio": report.geometric_mean(r["stock_us"] / r["tlm_us"] for r in both),
        "meaning": "time of MetaSchedule's best program over the TLM's, geometric mean",
        "machine": machine,
        "trials": options.trials,
        "task": task.name,
        "rows": rows,
    }
    report.show(f"{task.name}, {options.trials} trials, microseconds", rows)
    report.finish(document, options.json)
    return 0


def _compared(measurer: Any, task: Any, found: dict[str, Any]) -> report.Row:
    """Microseconds of what each strategy found, timed alternately; None: nothing ran."""
    from tlmd.data.types import MeasureInput
    from tlmd.space.space import TaskSpace

    space = TaskSpace(task)
    names = [name for name, candidate in found.items() if candidate is not None]
    inputs = [MeasureInput(found[n].id, space.trace_json(found[n])) for n in names]
    measurer.baseline(task)
    single = measurer.measure(task, inputs)
    if not all(outcome.ok and outcome.verified for outcome in single):
        raise SystemExit(f"a program is wrong: {[o.detail for o in single]}")
    outcomes = measurer.compare([(task, i) for i in inputs]) if len(inputs) > 1 else single
    times = {n: round(o.seconds * 1e6, 1) for n, o in zip(names, outcomes, strict=True)}
    return {f"{name}_us": times.get(name) for name in found}


if __name__ == "__main__":
    sys.exit(main())
