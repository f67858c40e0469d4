"""Judge a checkpoint on the bank without measuring: `python -m benchmarks.bank --checkpoint DIR`.

The bank (`data/bank.msgpack.gz`, made by `bank_measure`) has measured candidates of 40 strictly
held-out tasks. Reported are, as means over tasks with an interval by bootstrap over tasks: how well
the language model and the cost model order the candidates, and what the language model writes at
the best quality, at the worst, and what is drawn at random; and the best of the first k after the
same search before the device (`tlmd/generate/search.py`) among as many candidates that the language
model wrote or that were drawn at random. How fast written programs are is predicted by trees that
were fitted to the bank itself: their own error on candidates that they have not seen is reported as
`judge`. The headline `ratio` is the mean predicted speed of what is written
at the best quality over that of random candidates.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import bank_judge, report, setting
from benchmarks.bank_tasks import BANK
from benchmarks.bootstrap import interval, interval_of_ratio
from tlmd.config import GenerateConfig

_BY_KIND = (
    *("log p", "cost model", "random", "best written"),
    *("random + search @1", "TLM + search @1", "random + search @16", "TLM + search @16"),
)


def main() -> int:
    """Judge, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--bank", type=Path, default=BANK)
    parser.add_argument("--samples", type=int, default=48, help="per task and quality (default 48)")
    parser.add_argument("--limit", type=int, help="judge so many tasks only")
    parser.add_argument("--generations", type=int, default=GenerateConfig().generations)
    options = parser.parse_args()
    document = _judge(options)
    report.show("means over tasks, 95 % intervals", document["means"])
    report.show("by kind of task", document["kinds"])
    print("TLM + search over random + search, 95 % intervals:")
    print(document["TLM + search over random + search"])
    report.finish(document, options.json)
    return 0


def _judge(options: Any) -> report.Row:
    import torch

    torch.set_num_threads(1)
    checkpoint = setting.load(options.checkpoint, options.untrained)
    entries = bank_judge.entries(options.bank)[: options.limit]
    judge, error = bank_judge.fit_judge(entries)
    rows: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        row = bank_judge.rankings(entry, checkpoint)
        row |= bank_judge.samples(
            entry, checkpoint, judge, options.samples, options.generations, options.seed + 1
        )
        for name, value in row.items():
            rows[name].append(value)
        print(entry.kind, {k: round(v, 3) for k, v in row.items()}, file=sys.stderr, flush=True)
    kinds = [entry.kind for entry in entries]
    best, drawn = np.array(rows["best written"]), np.array(rows["random"])
    gains = {
        f"@{k}": interval_of_ratio(
            *(np.array(rows[f"{name} + search @{k}"]) for name in ("TLM", "random"))
        )
        for k in bank_judge.COUNTS
    }
    return {
        "benchmark": "bank",
        "machine": report.machine(),
        "judge": error,
        "means": [
            {"figure": name, "mean": float(np.mean(v)), "interval": interval(v)}
            for name, v in rows.items()
        ],
        "kinds": [
            {"kind": kind, **{n: _mean_of(kind, kinds, rows[n]) for n in _BY_KIND}}
            for kind in sorted(set(kinds))
        ],
        "TLM + search over random + search": gains,
        "ratio": float(best.mean() / drawn.mean()),
        "interval": interval_of_ratio(best, drawn),
        "meaning": "predicted speed of what is written at the best quality over random candidates",
    }


def _mean_of(kind: str, kinds: Sequence[str], values: Sequence[float]) -> float:
    return float(np.mean([v for k, v in zip(kinds, values, strict=True) if k == kind]))


if __name__ == "__main__":
    sys.exit(main())
