"""What share of the machine's nearer limit do tuned tasks reach?

`python -m benchmarks.roofline [MODEL ...] [--trials 16] [--json FILE]` tunes the models and lists
their tasks, those that take most of the model's time first. The limit of a task is the rate at
which the run cores multiply and add, or the bandwidth of memory (for weights) and of caches (for
the rest). Both are measured at the end of the same run (`tlmd/measure/timing/peak.py`). The
headline `ratio` is the share that all tasks together reach: Sum(weight x time at the limit) over
Sum(weight x best).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import report

_MODELS = ("resnet50", "mobilenet-v2", "bert-base", "vit-b16")


def main() -> int:
    """Tune, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("models", nargs="*", default=_MODELS)
    parser.add_argument("--trials", type=int, default=16, help="per task (default 16)")
    parser.add_argument("--state-dir", type=Path, help="keep the records here")
    options = parser.parse_args()
    here, tables = report.machine(), {}
    for model in options.models:
        tables[model] = _task_rows(model, options)
        report.show(f"{model}: {_limit_share(tables[model]):.0%} of the limits", tables[model])
    result = {
        "benchmark": "roofline",
        "machine": here,
        "trials": options.trials,
        "models": tables,
        "shares": {model: _limit_share(rows) for model, rows in tables.items()},
        "ratio": report.geometric_mean(_limit_share(rows) for rows in tables.values()),
        "meaning": "share of the limits that the tuned models reach, geometric mean",
    }
    report.finish(result, options.json)
    return 0


def _task_rows(model: str, options: Any) -> list[dict[str, Any]]:
    """One row per task, the one that takes most of the model's time first."""
    import tlmd

    settings: dict[str, Any] = {}
    if options.checkpoint:
        settings["generate.checkpoint"] = str(options.checkpoint)
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        result = tlmd.tune(
            model,
            trials=options.trials,
            out=Path(scratch) / "out",
            state_dir=options.state_dir or Path(scratch) / "state",
            seed=options.seed,
            **settings,
        )
    if result.interrupted:
        raise SystemExit(f"tuning {model} was interrupted; there is nothing to show")
    rows = [
        {
            "task": task["name"],
            "weight": task["weight"],
            "us": task["best_us"],
            "GFLOP/s": task["flops"] / task["best_us"] / 1e3,
            "of limit": task["peak_fraction"],
            "limit": limit,
        }
        for task, limit in zip(result.summary["tasks"], result.limits, strict=True)
        if task["best_us"] and task["peak_fraction"] is not None
    ]
    return sorted(rows, key=lambda row: -row["weight"] * row["us"])


def _limit_share(rows: list[dict[str, Any]]) -> float:
    """The share of the limits that all tasks together reach."""
    spent = sum(row["weight"] * row["us"] for row in rows)
    return float(sum(row["weight"] * row["us"] * row["of limit"] for row in rows) / spent)


if __name__ == "__main__":
    sys.exit(main())
