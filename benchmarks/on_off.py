"""What each kind of alternative buys: whole models with it and without it.

`python -m benchmarks.on_off [MODEL ...] [--trials 16] [--json FILE] [--resume]` measures for every
alternative of every task as many candidates (the direct program included), then times the best of
each in interleaved rounds. A model's time is the sum of weight x best over its tasks, with all
alternatives and without those of one kind; ``tried first`` has only the alternative that is tried
first, which does the least work (`tlmd/workloads/alternatives.py`). Tasks without alternatives are
left out: they take the same time in all columns. The headline `ratio` is the sum of direct programs
over the sum with all alternatives, geometric mean.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report, setting
from benchmarks.measured import searched
from tlmd.model_spec import ModelSpec
from tlmd.selection import fastest
from tlmd.types import MeasureInput, Record, Task

_MODELS = ("resnet18", "mobilenet-v2", "bert-small", "vit-s16")
_KINDS = ("winograd", "packed", "strassen")


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("models", nargs="*", default=_MODELS)
    parser.add_argument("--trials", type=int, default=16, help="per alternative (default 16)")
    parser.add_argument("--resume", action="store_true", help="keep the models that FILE has")
    options = parser.parse_args()
    document = _measure(options)
    report.show("sum of weight x best in ms; gain: without over with all", document["models"])
    report.finish(document, options.json)
    return 0


def _measure(options: Any) -> report.Row:
    machine, known = report.machine(), []
    if options.resume and options.json and options.json.exists():
        known = json.loads(options.json.read_text())["models"]
    rows = {row["model"]: row for row in known}
    for model in options.models:
        if model not in rows:
            rows[model] = _row(model, options) | {"commit": machine["commit"]}
            print(rows[model], file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(_document(machine, [*rows.values()]), indent=1))
    return _document(machine, [*rows.values()])


def _document(machine: report.Row, rows: list[report.Row]) -> report.Row:
    return {
        "benchmark": "on_off",
        "machine": machine,
        "models": rows,
        "ratio": report.geometric_mean(row["direct"] / row["all"] for row in rows),
        "meaning": "sum of direct programs over that with all alternatives, geometric mean",
    }


def _row(model: str, options: Any) -> report.Row:
    """The model's sums in milliseconds, and what each kind gains."""
    found: list[tuple[Task, dict[str, float]]] = []
    for measurer, group in best_programs(model, options):
        found.append((group[0][0], _compared(measurer, group)))
        print(group[0][0].name, found[-1][1], file=sys.stderr, flush=True)
    row: report.Row = {"model": model, "groups": len(found), "all": _sum_ms(found, ())}
    for kind in _KINDS:
        if any(name.startswith(kind) for _, times in found for name in times):
            row[f"without {kind}"] = _sum_ms(found, (kind,))
            row[f"gain of {kind}"] = row[f"without {kind}"] / row["all"]
    row["direct"] = _sum_ms(found, _KINDS)
    row["gain of all"] = row["direct"] / row["all"]
    first = [(task, dict(list(times.items())[:1])) for task, times in found]
    row["tried first"] = _sum_ms(first, ())
    row["tried first and fastest"] = sum(
        min(times.values()) == next(iter(times.values())) for _, times in found
    )
    row["chosen"] = {
        name: sum(min(t, key=t.__getitem__) == name for _, t in found)
        for name in sorted({name for _, times in found for name in times})
    }
    return row


def best_programs(model: str, options: Any) -> Iterator[tuple[Any, list[tuple[Task, Record]]]]:
    """For each group of a model's tasks: the measurer, and the best program of each alternative."""
    from tlmd.measure.cores import plan_cores
    from tlmd.measure.measurer import Measurer

    layout = plan_cores(run=1)
    groups = _groups(model, len(layout.run))
    setting.pin(layout.build)
    checkpoint = setting.load(options.checkpoint, options.untrained)
    with (
        tempfile.TemporaryDirectory(prefix="tlmd-bench-") as cache,
        Measurer(layout, Path(cache)) as measurer,
    ):
        for group in groups:
            yield measurer, [(task, _best(measurer, task, checkpoint, options)) for task in group]


def _groups(model: str, cores: int) -> list[list[Task]]:
    """The tasks of a model that have alternatives, each with these; the direct one is in it."""
    from tlmd.space.target import resolve
    from tlmd.workloads.preparation import lower_sets, merged_tasks

    groups: dict[str, list[Task]] = {}
    for task in merged_tasks(lower_sets(ModelSpec(model), resolve("native", cores))):
        groups.setdefault(task.computation, []).append(task)
    return [group for group in groups.values() if len(group) > 1]


def _best(measurer: Any, task: Task, checkpoint: Any, options: Any) -> Record:
    """The best of `trials` candidates, written by the product's own search."""
    records = searched(measurer, task, checkpoint, options.trials, options.seed)
    best = fastest(records)
    if best is None:
        raise SystemExit(f"no program of {task.name} works")
    return best


def _compared(measurer: Any, group: Sequence[tuple[Task, Record]]) -> dict[str, float]:
    """Seconds of the best program of each alternative, by its name."""
    from tlmd.space.space import TaskSpace

    finalists = [
        (task, MeasureInput(record.candidate.id, TaskSpace(task).trace_json(record.candidate)))
        for task, record in group
    ]
    outcomes = measurer.compare(finalists)
    if not outcomes:
        raise SystemExit(f"the alternatives of {group[0][0].name} could not be compared")
    names = [task.alternative or "direct" for task, _ in group]
    return {name: outcome.seconds for name, outcome in zip(names, outcomes, strict=True)}


def _sum_ms(found: Sequence[tuple[Task, dict[str, float]]], without: Sequence[str]) -> float:
    """The sum of weight x best over the groups, without alternatives of these kinds."""
    return 1e3 * sum(
        task.weight * min(s for name, s in times.items() if not name.startswith(tuple(without)))
        for task, times in found
    )


if __name__ == "__main__":
    sys.exit(main())
