"""What each part of the language model's training is worth, on the bank; nothing is measured.

`python -m benchmarks.ablation --state DIR [--minutes 4] [--seeds 3]` trains a language model from
scratch for each arm and seed, for the same CPU time on one core, and judges it on the bank beside
the shipped one and beside random candidates (`bank_judge`), all with the shipped cost model.
`DIR` keeps what is done, so that the same command goes on after an interruption. `--arms` trains
some of them only. Intervals are by bootstrap over tasks and seeds. The headline `ratio` is the mean
predicted speed of what the shipped model writes at the best quality over that of TVM's random
candidates.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import report, setting
from benchmarks.common.bootstrap import interval_over_seeds, mean_and_interval
from benchmarks.learning import bank_judge
from benchmarks.learning.bank_tasks import BANK
from tlmd.data.config import GenerateConfig
from tlmd.language.vocabulary import WORDS

_DATA = Path("benchmarks/learning/data")
_CAMPAIGN, _DISTILLED = _DATA / "demonstrations.msgpack.gz", _DATA / "distilled.msgpack.gz"
_SECOND_CAMPAIGN = tuple(
    _DATA / f"{name}.msgpack.gz"
    for name in ("demonstrations_synthetic", "demonstrations_seldom", "distilled_seldom")
)
_SHIPPED = "shipped"
_GENERATIONS = GenerateConfig().generations


@dataclass(frozen=True)
class Arm:
    """A way to train: sentences, size of the network, fields of `TrainingPlan`, the prompts."""

    files: tuple[Path, ...]
    preset: str = "nano"
    plan: dict[str, Any] = field(default_factory=dict)
    rewrite: bank_judge.Rewrite = tuple


def without_accesses(prompt: Sequence[int]) -> tuple[int, ...]:
    """The prompt with each block's operations and extents only, as the paper's names say them.

    What a block reads and writes, through which of its iterators, is left out.
    """
    kept, inside = [], False
    for token in prompt:
        word = WORDS[token]
        if word in ("read", "write"):
            inside = True
        elif word in ("block", "more", "[decide]") or word.startswith(("op:", "sketch:")):
            inside = False
        if not inside:
            kept.append(token)
    return tuple(kept)


_LIKELIHOOD = {"differences": 0.0, "likelihood": 1.0}
ARMS = {
    "likelihood of the best only, as in the paper": Arm((_CAMPAIGN,), plan=_LIKELIHOOD),
    "likelihood by quality": Arm((_CAMPAIGN,), plan={**_LIKELIHOOD, "worst": 1.0}),
    "differences": Arm((_CAMPAIGN,)),
    "differences by quality": Arm((_CAMPAIGN,), plan={"worst": 0.3}),
    "and distilled": Arm((_CAMPAIGN, _DISTILLED), plan={"worst": 0.3}),
    "and distilled, `small`": Arm((_CAMPAIGN, _DISTILLED), "small", {"worst": 0.3}),
    "and distilled, prompt without accesses": Arm(
        (_CAMPAIGN, _DISTILLED), plan={"worst": 0.3}, rewrite=without_accesses
    ),
    "and distilled, both campaigns": Arm(
        (_CAMPAIGN, _DISTILLED, *_SECOND_CAMPAIGN), plan={"worst": 0.3}
    ),
}
# Column: figure of `bank_judge`.
_COLUMNS = {
    "log p": "log p",
    "best - worst": "log p best - worst",
    "written": "best written",
    "search @1": "TLM + search @1",
    "@4": "TLM + search @4",
    "@16": "TLM + search @16",
}
_RANDOM = {
    "written": "random",
    "search @1": "random + search @1",
    "@4": "random + search @4",
    "@16": "random + search @16",
}


def main() -> int:
    """Train, judge, print, write."""
    parser = report.parser(__doc__, state="keeps what is done")
    parser.add_argument("--minutes", type=float, default=4, help="of CPU for each arm and seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=16, help="per task (default 16)")
    parser.add_argument("--arms", choices=ARMS, nargs="+", default=list(ARMS))
    options = parser.parse_args()
    document = _document(options)
    report.show("rank correlations; predicted shares of the best speed; 95 %", document["arms"])
    report.show("search over that of random candidates; 95 %", document["over random"])
    report.finish(document, options.json)
    return 0


def _document(options: Any) -> report.Row:
    import torch

    torch.set_num_threads(1)
    shipped = setting.load(options.checkpoint, options.untrained)
    bank = bank_judge.entries(BANK)
    judge, error = bank_judge.fit_judge(bank)
    found: dict[str, list[list[report.Row]]] = {}
    for seed in range(options.seeds):
        for name in (_SHIPPED, *options.arms):
            found.setdefault(name, []).append(_judged(name, seed, shipped, bank, judge, options))
    drawn, known = "TVM's random candidates", found[_SHIPPED]
    rows = [_row(drawn, known, _RANDOM), _row("uniform decisions", known, {"written": "uniform"})]
    rows += [_row(name, judged, _COLUMNS) for name, judged in found.items()]
    written, at_random = (_values(known, figure) for figure in ("best written", "random"))
    return {
        "benchmark": "ablation",
        "machine": report.machine(),
        "judge": error,
        "minutes": options.minutes,
        "seeds": options.seeds,
        "samples": options.samples,
        "arms": rows,
        "over random": [_over_random(name, judged, known) for name, judged in found.items()],
        "ratio": float(written.mean() / at_random.mean()),
        "interval": interval_over_seeds(written, at_random),
        "meaning": "predicted speed of what the shipped model writes over random candidates",
    }


def _judged(
    name: str, seed: int, shipped: Any, bank: Any, judge: Any, options: Any
) -> list[report.Row]:
    """The figures of each task; trains first, unless this was done before."""
    kept = options.state / f"{list(ARMS).index(name) if name in ARMS else name}-{seed}.json"
    if kept.exists():
        rows: list[report.Row] = json.loads(kept.read_text())
        return rows
    arm = ARMS.get(name)
    model = shipped.model if arm is None else _trained(arm, options.minutes, seed)
    rewrite = tuple if arm is None else arm.rewrite
    checkpoint = replace(shipped, model=model)
    rows = [
        bank_judge.rankings(entry, checkpoint, rewrite)
        | bank_judge.samples(
            entry,
            checkpoint,
            judge,
            options.samples,
            _GENERATIONS,
            seed + 1,
            drawn=arm is None,
            rewrite=rewrite,
        )
        for entry in bank
    ]
    kept.write_text(json.dumps(rows))
    row = _row(name, [rows], _COLUMNS)
    print(row, file=sys.stderr, flush=True)
    return rows


def _trained(arm: Arm, minutes: float, seed: int) -> Any:
    """A network that was trained for so many minutes of CPU."""
    from tlmd.tlm import network
    from tlmd.tlm.demonstration_file import read_demonstrations
    from tlmd.tlm.training import Trainer, TrainingPlan, until

    tasks = [
        replace(task, prompt=arm.rewrite(task.prompt))
        for path in arm.files
        for task in read_demonstrations(path)
    ]
    model = network.create(arm.preset, seed)
    plan = TrainingPlan(seed=seed, **arm.plan)
    Trainer(model, plan).fit(tasks, progress=until(minutes * 60, time.process_time))
    return model


def _row(name: str, judged: list[list[report.Row]], columns: dict[str, str]) -> report.Row:
    row: report.Row = {"arm": name, **dict.fromkeys(_COLUMNS, "")}
    for column, figure in columns.items():
        row[column] = mean_and_interval(_values(judged, figure))
    return row


def _over_random(
    name: str, judged: list[list[report.Row]], drawn: list[list[report.Row]]
) -> report.Row:
    """What the search finds over what it finds among random candidates, of the same tasks."""
    row: report.Row = {"arm": name}
    for count in bank_judge.COUNTS:
        found = _values(judged, f"TLM + search @{count}")
        below = _values(drawn, f"random + search @{count}")
        interval = interval_over_seeds(found, below)
        row[f"@{count}"] = report.interval(found.mean() / below.mean(), *interval)
    return row


def _values(judged: list[list[report.Row]], figure: str) -> Any:
    """``[seeds, tasks]``."""
    return np.array([[row[figure] for row in rows] for rows in judged])


if __name__ == "__main__":
    sys.exit(main())
