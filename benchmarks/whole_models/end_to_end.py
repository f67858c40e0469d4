"""Whole models: tuned by tlmd beside PyTorch, torch.compile, ONNX Runtime and OpenVINO.

`python -m benchmarks.end_to_end [MODEL ...] [--cores 1 2] [--trials 16] [--precision fp32] [--json
FILE]` tunes each model for each number of cores, and times all of them interleaved in one process
on as many cores, in this precision (`deployments`; int8: quantised by ONNX Runtime). With several
`--trials`, from few to many, the same model is tuned further. With `--time-budget SECONDS ...` each
of them is tuned anew for so long, with at most the largest of `--trials`. `--resume` keeps the rows
that FILE has; each row says the commit that it is of. With `--metaschedule` stock MetaSchedule
tunes the model, too, for as long as tlmd took for the last of `--trials` (`metaschedule_model`).
The headline `ratio` is the time of the fastest of the other four over tlmd's, geometric mean. In
float32 a row's `limit` is what the model's operations (of the direct programs, as TVM counts them)
take at the rate at which the cores multiply and add, which is measured in turns with the models.
`comparison` makes a page and a picture of rows that are kept.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common import pinned, report
from benchmarks.whole_models import onnx_models
from benchmarks.whole_models.deployments import METASCHEDULE, PEERS, TLMD
from tlmd.data.model_spec import FP32, INT8, PRECISIONS, ModelSpec
from tlmd.processes import children

_MODELS = ("resnet18", "resnet50", "mobilenet-v2", "bert-small", "vit-s16")
KEY = ("model", "cores", "trials", "precision", "budget_s")
LABELS = {
    "eager": "PyTorch eager",
    "compile": "torch.compile (max-autotune)",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("models", nargs="*", default=_MODELS)
    parser.add_argument("--cores", type=int, nargs="+", default=[1])
    parser.add_argument("--trials", type=int, nargs="+", default=[16])
    parser.add_argument("--time-budget", type=float, nargs="+", metavar="SECONDS")
    parser.add_argument("--precision", choices=PRECISIONS, default=FP32)
    parser.add_argument("--metaschedule", action="store_true", help="tune by MetaSchedule, too")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE has")
    options = parser.parse_args()
    if options.resume and options.json is None:
        parser.error("--resume needs --json FILE")
    document = _measure_models(options)
    title = f"milliseconds per run in {options.precision}; best / tlmd with its 95 % interval"
    report.show(title, map(shown, document["models"]))
    report.finish(document, options.json)
    return 0


def _measure_models(options: Any) -> report.Row:
    machine = report.machine()
    rows: list[report.Row] = []
    if options.resume and options.json.exists():
        rows = json.loads(options.json.read_text())["models"]
    steps = sorted(options.trials)
    known = {tuple(row.get(name) for name in KEY) for row in rows}
    for model, cores, budget in product(
        options.models, options.cores, options.time_budget or [None]
    ):
        with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as state:
            wall_s = 0.0  # of all steps: each goes on from the records of the one before
            for trials in steps if budget is None else steps[-1:]:
                if (model, cores, trials, options.precision, budget) in known:
                    continue
                stock = options.metaschedule and trials == steps[-1]
                row = _row(model, cores, trials, budget, Path(state), wall_s, stock, options)
                wall_s = row["wall_s"]
                rows.append(row | {"commit": machine["commit"]})
                print(rows[-1], file=sys.stderr, flush=True)
                if options.json is not None:
                    options.json.write_text(json.dumps(_document(machine, rows), indent=1))
    return _document(machine, rows)


def _document(machine: report.Row, rows: list[report.Row]) -> report.Row:
    return {
        "ratio": report.geometric_mean(row["best / tlmd"] for row in rows),
        "meaning": "time of the fastest of the four over tlmd's, geometric mean",
        "machine": machine,
        "models": rows,
    }


def shown(row: report.Row) -> report.Row:
    """The figures of a row that a terminal has room for."""
    stock = row.get(f"{METASCHEDULE} / tlmd")
    return {
        **{name: row[name] for name in ("model", "cores", "trials")},
        "budget": row.get("budget_s"),
        **{name: row[name] for name in (TLMD, *PEERS)},
        "best / tlmd": best_ratio(row),
        f"{METASCHEDULE} / tlmd": report.interval(*stock) if stock else None,
        "error": row["error"],
        "wall_s": row["wall_s"],
    }


def best_ratio(row: report.Row) -> str:
    """The time of the fastest of the other four over that of tlmd, with its interval."""
    return report.interval(row["best / tlmd"], row["low"], row["high"])


def _row(
    model: str,
    cores: int,
    trials: int,
    budget_s: float | None,
    state: Path,
    before_s: float,
    metaschedule: bool,
    options: Any,
) -> report.Row:
    """Tune one model, which took `before_s` seconds until now, and time it beside the others."""
    import tlmd
    from tlmd.measure.cores.core_plan import plan_cores
    from tlmd.models import factories

    settings: dict[str, Any] = {"measure.run_cores": cores}
    if options.checkpoint:
        settings["generate.checkpoint"] = str(options.checkpoint)
    onnx = state / "model.onnx"
    if options.precision == INT8 and not onnx.exists():
        onnx_models.quantise(*factories.make(ModelSpec(model)), onnx)
    begin = time.monotonic()
    result = tlmd.tune(
        str(onnx) if options.precision == INT8 else model,
        precision=options.precision,
        trials=trials,
        time_budget=budget_s,
        out=state / "out",
        state_dir=state,
        seed=options.seed,
        **settings,
    )
    if result.interrupted:
        raise SystemExit(f"tuning {model} was interrupted; there is nothing to time")
    wall_s = before_s + time.monotonic() - begin
    run_cores = plan_cores(run=cores).run
    stock = state / METASCHEDULE
    if metaschedule:
        stock.mkdir()
        pinned.run("metaschedule_model", model, str(wall_s), stock, cores=run_cores)
    found = state / "times.json"
    pinned.run(
        *("deployments", model, state / "out", str(cores), found, options.precision, onnx, stock),
        cores=run_cores,
        environment=children.running_tvm(cores, OMP_NUM_THREADS=str(cores)),
    )
    times = json.loads(found.read_text())
    for name, reason in times["failed"].items():
        print(f"{model}: {LABELS[name]} failed: {reason}", file=sys.stderr, flush=True)
    ratios = times["ratios"]
    best = min((name for name in PEERS if name in ratios), key=lambda name: ratios[name][0])
    ratio, low, high = ratios[best]
    return {
        "model": model,
        "cores": cores,
        "trials": trials,
        "precision": options.precision,
        **({} if budget_s is None else {"budget_s": budget_s}),
        **({"limit": _limit_ms(result.summary, times)} if options.precision == FP32 else {}),
        "untuned": result.summary["e2e"]["untuned_ms"],
        TLMD: times["ms"][TLMD],
        **{name: times["ms"].get(name) for name in PEERS},
        "best": best,
        "best / tlmd": ratio,
        "low": low,
        "high": high,
        "error": times["errors"][TLMD],
        "wall_s": round(wall_s, 1),
        **(_of_metaschedule(times, stock) if metaschedule else {}),
    }


def _limit_ms(summary: dict[str, Any], times: dict[str, Any]) -> float:
    """What the operations of the model take when the cores only multiply and add."""
    operations = sum(task["flops"] * task["weight"] for task in summary["tasks"])
    return float(operations / times["gflops"] / 1e6)


def _of_metaschedule(times: dict[str, Any], stock: Path) -> report.Row:
    """What the row says of MetaSchedule; `stock` is the folder of its search."""
    searched = json.loads((stock / "found.json").read_text())
    return {
        METASCHEDULE: times["ms"][METASCHEDULE],
        f"{METASCHEDULE} / tlmd": times["ratios"][METASCHEDULE],
        f"{METASCHEDULE} error": times["errors"][METASCHEDULE],
        **{f"{METASCHEDULE} {name}": value for name, value in searched.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
