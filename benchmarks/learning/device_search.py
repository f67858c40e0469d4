"""What the search finds on the device with other language models and other settings.

`python -m benchmarks.device_search --state DIR [--others CHECKPOINT...] [--settings TEXT...]` tunes
tasks of the bank, which no checkpoint was trained on, as the daemon does without fine-tuning: with
the language model of the shipped checkpoint and with those of `--others`, under each of
`--settings` (fields of `GenerateConfig`, such as "drawn=0 refined=0.3"). All are compared with
a search that starts from candidates that were drawn at random (`random`). The cost model is that of
the shipped checkpoint; with `--whole` each of `--others` has its own. The best of the first 1, 4,
10, 16 and 32 measurements of all are timed in interleaved rounds. Intervals are by bootstrap over
tasks and `--seeds`. `DIR` keeps what is done, so that the same command goes on after an
interruption. The headline `ratio` is the speed of the first's best over that of `random`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common import report, setting
from benchmarks.common.bootstrap import geometric_mean_and_interval
from benchmarks.common.measured import on_one_core, race, searched
from benchmarks.learning.bank_tasks import BANK, kinds_of
from tlmd.data.config import GenerateConfig
from tlmd.data.types import Task
from tlmd.tlm.checkpoint import Checkpoint

_RANDOM, _SHIPPED = "random", "shipped"
_COUNTS = (1, 4, 10, 16, 32)
_Compared = dict[str, dict[int, float]]
"""Seconds of the best of so many measurements of each arm."""
_BySeed = list[list[_Compared]]
"""For each seed those of all tasks."""


@dataclass(frozen=True)
class SearchStart:
    """What writes the candidates with which the search starts."""

    checkpoint: Checkpoint
    config: GenerateConfig


def main() -> int:
    """Search, race, print, write."""
    parser = report.parser(__doc__, state="keeps what is done")
    parser.add_argument("--others", type=Path, nargs="*", default=[], help="further checkpoints")
    parser.add_argument("--whole", action="store_true", help="others with their cost models")
    parser.add_argument("--settings", nargs="*", default=[""], help="of the search")
    parser.add_argument("--trials", type=int, default=16, help="per task (default 16)")
    parser.add_argument("--bank", type=Path, default=BANK)
    parser.add_argument("--seeds", type=int, default=1, help="so many, --seed first (default 1)")
    parser.add_argument("--first", type=int, default=0, help="number of the first task")
    parser.add_argument("--every", type=int, default=1, help="one of so many tasks")
    options = parser.parse_args()
    document = _measure(options)
    report.show("speed over that of random, geometric means, 95 %", document["arms"])
    report.finish(document, options.json)
    return 0


def _measure(options: Any) -> report.Row:
    here = report.machine()
    from tlmd.learn.encode_records import read_records
    from tlmd.space.hardware.target import resolve

    known, _ = read_records(options.bank)
    target = resolve("native", 1)
    tasks = [replace(task, target=target) for task in known]
    chosen = list(zip(tasks, kinds_of(known), strict=True))[options.first :: options.every]
    arms = _arms(options)
    with on_one_core(options.state) as measurer:
        compared = [
            [_compared(measurer, task, arms, options, seed) for task, _ in chosen]
            for seed in range(options.seed, options.seed + options.seeds)
        ]
    first = list(arms)[1]
    mean, low, high = _gain(first, compared, _counts(options)[-1])
    return {
        "benchmark": "device search",
        "machine": here,
        "fingerprint": target.fingerprint,
        "seeds": options.seeds,
        "arms": [_row(name, compared, options) for name in arms if name != _RANDOM],
        "tasks": [
            {"task": task.name, "kind": kind, "seconds": seconds}
            for row in compared
            for (task, kind), seconds in zip(chosen, row, strict=True)
        ],
        "ratio": mean,
        "interval": [low, high],
        "meaning": f"speed of the best of {options.trials}, {first}, over that of random",
    }


def _arms(options: Any) -> dict[str, SearchStart]:
    """The language models by name."""
    shipped = setting.load(options.checkpoint, options.untrained)
    others = {path.name: setting.load(path, untrained=False) for path in options.others}
    if not options.whole:
        others = {name: replace(shipped, model=other.model) for name, other in others.items()}
    arms = {_RANDOM: SearchStart(shipped, GenerateConfig(drawn=1))}
    for name, checkpoint in {_SHIPPED: shipped, **others}.items():
        for text in options.settings:
            fields = dict(field.split("=") for field in text.split())
            config = GenerateConfig.model_validate(fields)
            arms[f"{name} {text}".strip()] = SearchStart(checkpoint, config)
    return arms


def _counts(options: Any) -> list[int]:
    return [count for count in _COUNTS if count <= options.trials]


def _compared(
    measurer: Any, task: Task, arms: Mapping[str, SearchStart], options: Any, seed: int
) -> _Compared:
    """One search of each arm; from `--state` if it has them."""
    kept = options.state / f"{task.id}-{seed}.json"
    if kept.exists():
        read = json.loads(kept.read_text())
        if set(read) == set(arms):
            return {name: {int(k): s for k, s in row.items()} for name, row in read.items()}
    runs = {
        name: searched(measurer, task, arm.checkpoint, options.trials, seed, arm.config)
        for name, arm in arms.items()
    }
    seconds = race(measurer, task, runs, _counts(options))
    kept.write_text(json.dumps(seconds))
    print(task.name, seconds, file=sys.stderr, flush=True)
    return seconds


def _gain(name: str, compared: _BySeed, k: int) -> tuple[float, float, float]:
    ratios = [[of[_RANDOM][k] / of[name][k] for of in tasks] for tasks in compared]
    return geometric_mean_and_interval(ratios)


def _row(name: str, compared: _BySeed, options: Any) -> report.Row:
    row: report.Row = {"search": name}
    for k in _counts(options):
        row[f"@{k}"] = report.interval(*_gain(name, compared, k))
    return row


if __name__ == "__main__":
    sys.exit(main())
