"""Models tuned for one core and for all, beside PyTorch and ONNX Runtime on as many cores.

`python -m benchmarks.all_cores [MODEL ...] [--trials 16] [--json FILE]`. All that is compared takes
turns of a second each in one process. The headline `ratio` is how much faster all cores run the
models than one core, each with the library that was tuned for it, geometric mean.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import interleaved, pinned, report
from tlmd import children

_MODELS = ("resnet18", "bert-small")


def main() -> int:
    """Tune, time, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("models", nargs="*", default=_MODELS)
    parser.add_argument("--trials", type=int, default=16)
    options = parser.parse_args()
    document = _measure(options)
    report.show("milliseconds per run", document["rows"])
    report.finish(document, options.json)
    return 0


def _measure(options: Any) -> report.Row:
    from tlmd.measure.cores import plan_cores

    machine = report.machine()
    counts = sorted({1, len(plan_cores().run)})
    rows = [_row(model, cores, options) for model in options.models for cores in counts]
    tuned = {(row["model"], row["cores"]): row["tlmd_ms"] for row in rows}
    ratios = [tuned[m, counts[0]] / tuned[m, counts[-1]] for m in options.models]
    return {
        "ratio": report.geometric_mean(ratios),
        "meaning": "speed of all cores over that of one, geometric mean",
        "machine": machine,
        "trials": options.trials,
        "rows": rows,
    }


def _row(model: str, cores: int, options: Any) -> report.Row:
    """Tune one model for so many cores, and time it beside the others on as many."""
    import tlmd
    from tlmd.measure.cores import plan_cores

    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        settings: dict[str, Any] = {"measure.run_cores": cores}
        if options.checkpoint:
            settings["generate.checkpoint"] = str(options.checkpoint)
        result = tlmd.tune(
            model,
            trials=options.trials,
            out=f"{scratch}/out",
            state_dir=f"{scratch}/state",
            seed=options.seed,
            **settings,
        )
        wall_s = time.monotonic() - begin
        times = json.loads(
            pinned.run(
                "all_cores",
                "time",
                model,
                scratch,
                str(cores),
                cores=plan_cores(run=cores).run,
                environment=children.running_tvm(cores, OMP_NUM_THREADS=str(cores)),
            ).splitlines()[-1]
        )
    tasks_ms = sum(t["weight"] * t["best_us"] for t in result.summary["tasks"]) / 1e3
    shares = [t["peak_fraction"] for t in result.summary["tasks"] if t["peak_fraction"]]
    return {
        "model": model,
        "cores": cores,
        **{f"{name}_ms": round(ms, 3) for name, ms in times.items()},
        "tasks_ms": round(tasks_ms, 3),
        "largest_share": max(shares, default=None),
        "tuning_s": round(wall_s, 1),
    }


def _time(model: str, scratch: Path, cores: int) -> None:
    """Print the median milliseconds of each, as one line of JSON."""
    import onnxruntime
    import torch

    import tlmd
    from tlmd.workloads.zoo import zoo

    torch.set_num_threads(cores)
    module, example = zoo()[model].make(None)
    module.eval()
    torch.onnx.export(module, tuple(example), str(scratch / "model.onnx"), dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    session = onnxruntime.InferenceSession(
        str(scratch / "model.onnx"), options, ["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_inputs()]
    feed = {name: value.numpy() for name, value in zip(names, example, strict=True)}
    loaded = tlmd.load(scratch / "out")
    runs: dict[str, Callable[[], Any]] = {
        "tlmd": lambda: loaded(*example),
        "pytorch": lambda: module(*example),
        "onnxruntime": lambda: session.run(None, feed),
    }
    with torch.no_grad():
        print(json.dumps(interleaved.medians_ms(runs)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["time"]:
        _time(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
        sys.exit(0)
    sys.exit(main())
