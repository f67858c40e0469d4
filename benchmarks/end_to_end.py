"""Whole models: tuned by tlmd against untuned TVM and PyTorch eager, on the same cores in one run.

`python -m benchmarks.end_to_end [MODEL ...] [--trials 16] [--json FILE] [--figure FILE]`. The
headline `ratio` is the geometric mean of PyTorch eager's time over the tuned model's.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import report

_SMALL_MODELS = ("bert-tiny", "resnet18")
_COLOURS = {"untuned": "#b9c4cf", "pytorch": "#e08a3c", "tuned": "#2b6cb0"}
_NAMES = {"untuned": "untuned TVM", "pytorch": "PyTorch eager", "tuned": "tuned by tlmd"}


def main() -> int:
    """Measure, print, write, draw."""
    parser = report.parser(__doc__, figure=True)
    parser.add_argument("models", nargs="*", default=_SMALL_MODELS)
    parser.add_argument("--trials", type=int, default=16)
    options = parser.parse_args()
    document = report.document(options, _measure_models)
    report.show("whole models, milliseconds per run", document["models"])
    report.finish(document, options.json)
    if options.figure:
        _draw_bars(document, options.figure)
    return 0


def _measure_models(options: Any) -> report.Row:
    from tlmd.measure.cores import plan_cores

    machine = report.machine()
    rows = [_model_row(model, options) for model in options.models]
    ratios = [r["pytorch_ms"] / r["tuned_ms"] for r in rows if r["pytorch_ms"]]
    return {
        "ratio": report.geometric_mean(ratios),
        "meaning": "PyTorch eager's time over the tuned model's, geometric mean",
        "machine": machine,
        "trials": options.trials,
        "run_cores": len(plan_cores().run),
        "models": rows,
    }


def _model_row(model: str, options: Any) -> report.Row:
    """Tune one model and time it whole."""
    import tlmd

    settings: dict[str, Any] = {}
    if options.checkpoint:
        settings["generate.checkpoint"] = str(options.checkpoint)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        result = tlmd.tune(
            model,
            trials=options.trials,
            out=f"{scratch}/out",
            state_dir=scratch,
            seed=options.seed,
            **settings,
        )
    if result.interrupted:
        raise SystemExit(f"tuning {model} was interrupted; there is nothing to time")
    whole = result.summary["e2e"]
    return {
        "model": model,
        "untuned_ms": whole["untuned_ms"],
        "pytorch_ms": result.pytorch_ms,
        "tuned_ms": whole["tuned_ms"],
        "max_abs_err": whole["max_abs_err"],
        "measured": result.summary["measured"],
        "wall_s": round(time.monotonic() - begin, 1),
    }


def _draw_bars(document: report.Row, path: Path) -> None:
    """Horizontal bars on a logarithmic axis, one group per model, each labelled with its time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = document["models"]
    figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.95 * len(rows)))
    for group, row in enumerate(reversed(rows)):
        for offset, kind in enumerate(("tuned", "pytorch", "untuned")):
            value = row[f"{kind}_ms"]
            at = group + (offset - 1) * 0.27
            label = _NAMES[kind] if group == 0 else None
            axes.barh(at, value, 0.25, color=_COLOURS[kind], label=label)
            axes.text(value * 1.06, at, f"{value:.2f} ms", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [r["model"] for r in reversed(rows)])
    axes.set_xscale("log")
    axes.set_xlim(right=max(r["untuned_ms"] for r in rows) * 4)
    cores = document.get("run_cores", 1)
    on = "one core" if cores == 1 else f"{cores} cores"
    axes.set_xlabel(f"milliseconds per run, {on}, logarithmic (shorter is better)")
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False, fontsize=8, loc="lower right")
    machine = document["machine"]
    text = f"{machine['cpu']}, {document['trials']} trials per task, commit {machine['commit']}"
    axes.set_title(text, fontsize=9, loc="left", color="#5a6b7b")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    sys.exit(main())
