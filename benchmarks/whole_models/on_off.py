"""What each kind of alternative buys: whole models with it and without it.

`python -m benchmarks.on_off [MODEL ...] [--trials 16] [--json FILE] [--resume]` measures so many
candidates of every alternative of every task, then times the best of each in interleaved rounds
(`on_off_programs`). A model's time is the sum of weight x best over its tasks,
with all kinds and without one of them. Beside Winograd's, Strassen's and packed programs, kinds are
attention as one task (without it: products, softmax, transposes), a large expansion and its
depthwise convolution as one task, and the sketch of `tlmd.space.rules.window_sketches` (without it:
the program of TVM's own sketches). ``tried first`` has only the alternative of each task that is
tried first, which does the least work (`tlmd/lowering/alternatives.py`). The headline `ratio` is
the time without any over that with all kinds, geometric mean.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import report
from benchmarks.common.measured import on_one_core
from benchmarks.whole_models.on_off_programs import KINDS, Timed, timed_model
from tlmd.data.model_spec import ModelSpec

_MODELS = ("resnet18", "mobilenet-v2", "bert-small", "vit-s16")


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("models", nargs="*", default=_MODELS)
    parser.add_argument("--trials", type=int, default=16, help="per alternative (default 16)")
    parser.add_argument("--resume", action="store_true", help="keep the models that FILE has")
    options = parser.parse_args()
    document = _measure(options)
    rows = [{k: v for k, v in row.items() if k != "times"} for row in document["models"]]
    report.show("sum of weight x best in ms; gain: without over with all", rows)
    report.finish(document, options.json)
    return 0


def _measure(options: Any) -> report.Row:
    machine, known = report.machine(), []
    if options.resume and options.json and options.json.exists():
        known = json.loads(options.json.read_text())["models"]
    rows = {row["model"]: row for row in known}
    with (
        tempfile.TemporaryDirectory(prefix="tlmd-bench-") as state,
        on_one_core(Path(state)) as measurer,
    ):
        for model in options.models:
            if model in rows:
                continue
            found = timed_model(measurer, ModelSpec(model), options)
            rows[model] = {"model": model, **_row(found), "commit": machine["commit"]}
            if options.json:
                options.json.write_text(json.dumps(_document(machine, [*rows.values()]), indent=1))
    return _document(machine, [*rows.values()])


def _document(machine: report.Row, rows: list[report.Row]) -> report.Row:
    return {
        "benchmark": "on_off",
        "machine": machine,
        "models": rows,
        "ratio": report.geometric_mean(row["gain of all"] for row in rows),
        "meaning": "time without any kind over that with all, geometric mean",
    }


def _row(found: list[Timed]) -> report.Row:
    """The model's sums in milliseconds, and what each kind gains."""
    row: report.Row = {"all": _sum_ms(found, ())}
    for kind in KINDS:
        if any(one.has(kind) for one in found):
            row[f"gain of {kind}"] = _sum_ms(found, (kind,)) / row["all"]
    row["without any"] = _sum_ms(found, KINDS)
    row["gain of all"] = row["without any"] / row["all"]
    groups = [one for one in found if one.has_alternatives and one.weights[""]]
    row["groups"] = len(groups)
    lost = sum(one.weights[""] * (one.first - one.best(())) for one in groups)
    row["tried first"] = row["all"] + 1e3 * lost
    row["tried first and fastest"] = sum(one.first == one.best(()) for one in groups)
    chosen = [min(one.times, key=one.times.__getitem__) for one in groups]
    row["chosen"] = {name: chosen.count(name) for name in sorted(set(chosen))}
    return row | {"times": [asdict(one) for one in found]}


def _sum_ms(found: list[Timed], without: Collection[str]) -> float:
    """The sum of weight x best over the tasks of the model that is lowered without these kinds."""
    return 1e3 * sum(one.seconds(without) for one in found)


if __name__ == "__main__":
    sys.exit(main())
