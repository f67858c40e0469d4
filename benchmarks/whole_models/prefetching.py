"""What prefetching weights buys: the best programs of alternatives with it and without it.

`python -m benchmarks.prefetching [MODEL ...] [--trials 16] [--json FILE]` measures so
many candidates of every alternative of each model, builds the best of each with prefetches and
without (as plain TVM builds a record), and times both in turns, weights from memory. A model's row
has the sums of weight x the fastest alternative; tasks without alternatives are left out. The
headline `ratio` is the time without over that with prefetches, geometric mean.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import report, setting
from benchmarks.common.measured import on_one_core
from benchmarks.whole_models.on_off_programs import best, groups, load_source
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import Record, Task

_MODELS = ("resnet18", "bert-base", "vit-s16")
_ROUNDS = 30


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("models", nargs="*", default=_MODELS)
    parser.add_argument("--trials", type=int, default=16, help="per alternative (default 16)")
    options = parser.parse_args()
    document = _measure(options)
    report.show("sum of weight x best in ms, weights from memory", document["models"])
    report.finish(document, options.json)
    return 0


def _measure(options: Any) -> report.Row:
    machine, rows = report.machine(), []
    for model in options.models:
        rows.append(_row(model, options))
        print(rows[-1], file=sys.stderr, flush=True)
    return {
        "benchmark": "prefetching",
        "machine": machine,
        "ratio": report.geometric_mean(row["gain"] for row in rows),
        "meaning": "time without prefetches over that with them, geometric mean",
        "models": rows,
    }


def _row(model: str, options: Any) -> report.Row:
    """The sums of a model, and how many of its groups are faster by more than 1 %."""
    from tlmd.measure.cores.core_plan import plan_cores

    checkpoint = setting.load(options.checkpoint, options.untrained)
    with (
        tempfile.TemporaryDirectory(prefix="tlmd-bench-") as state,
        on_one_core(Path(state)) as measurer,
    ):
        written = [
            [(task, best(measurer, task, checkpoint, options)) for task in group]
            for group in groups(load_source(ModelSpec(model))).values()
            if len(group) > 1
        ]
    setting.pin(plan_cores(run=1).run)
    found = [(group[0][0].weight, *_fastest(group)) for group in written]
    with_ms = 1e3 * sum(weight * fast for weight, fast, _ in found)
    without_ms = 1e3 * sum(weight * plain for weight, _, plain in found)
    return {
        "model": model,
        "groups": len(found),
        "with": with_ms,
        "without": without_ms,
        "gain": without_ms / with_ms,
        "faster": sum(plain > 1.01 * fast for _, fast, plain in found),
    }


def _fastest(group: list[tuple[Task, Record]]) -> tuple[float, float]:
    """Seconds of the fastest alternative with prefetches, and of the fastest without them."""
    times = [_seconds(task, record) for task, record in group]
    return min(fast for fast, _ in times), min(plain for _, plain in times)


def _seconds(task: Task, record: Record) -> tuple[float, float]:
    """Median seconds of a program with prefetches and without, in turns."""
    import tvm

    from tlmd.alternatives.prefetch import with_prefetches
    from tlmd.measure.server.executable import Executable
    from tlmd.measure.server.program import parse
    from tlmd.space.hardware.target import tvm_target
    from tlmd.space.space import TaskSpace

    program, target = parse(task), tvm_target(task.target)
    scheduled = TaskSpace(task).finish(record.candidate).mod
    built = []
    for module in (with_prefetches(scheduled), scheduled):
        runtime = tvm.compile(module, target).jit()
        built.append(Executable(runtime, program, tvm.cpu(), cold=True))
        built[-1].allocate(None)
    turns = [[one.run(1) for one in built] for _ in range(_ROUNDS)]
    fast, plain = (statistics.median(times) for times in zip(*turns, strict=True))
    return fast, plain


if __name__ == "__main__":
    sys.exit(main())
