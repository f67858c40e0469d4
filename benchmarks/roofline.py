"""What share of the machine's nearer limit do tuned tasks reach?

`python -m benchmarks.roofline [MODEL ...] [--trials 16] [--json FILE]` tunes the models and lists
their tasks by the time they take of the whole: the limit is what the run cores multiply and add,
or what the bandwidth of memory (weights) and caches (the rest) allows, both measured at the end of
the same run (`tlmd/measure/peak.py`). The headline `ratio` is the share that all tasks together
reach: Sum(weight x time at the limit) over Sum(weight x best).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import report

MODELS = ("resnet50", "bert-base")


def main() -> int:
    """Tune, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--trials", type=int, default=16, help="per task (default 16)")
    parser.add_argument("--state-dir", type=Path, help="keep the records here")
    options = parser.parse_args()
    here, tables = report.machine(), {}
    for model in options.models:
        tables[model] = _table(model, options)
        report.show(f"{model}: {_share(tables[model]):.0%} of the limits", tables[model])
    result = {
        "benchmark": "roofline",
        "machine": here,
        "trials": options.trials,
        "models": tables,
        "shares": {model: _share(rows) for model, rows in tables.items()},
        "ratio": report.geometric_mean(_share(rows) for rows in tables.values()),
        "meaning": "share of the limits that the tuned models reach, geometric mean",
    }
    report.finish(result, options.json)
    return 0


def _table(model: str, options: Any) -> list[dict[str, Any]]:
    """One row per task, the one that takes most of the model's time first."""
    import tlmd

    settings = {"generate.checkpoint": str(options.checkpoint)} if options.checkpoint else {}
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        result = tlmd.tune(
            model,
            trials=options.trials,
            out=Path(scratch) / "out",
            state_dir=options.state_dir or Path(scratch) / "state",
            seed=options.seed,
            **settings,
        )
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


def _share(rows: list[dict[str, Any]]) -> float:
    """Of the limits, of all tasks together."""
    spent = sum(row["weight"] * row["us"] for row in rows)
    return float(sum(row["weight"] * row["us"] * row["of limit"] for row in rows) / spent)


if __name__ == "__main__":
    sys.exit(main())
