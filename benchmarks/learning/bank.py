"""Judge a checkpoint on the bank without measuring: `python -m benchmarks.bank --checkpoint DIR`.

The bank (`data/bank.msgpack.gz`, made by `bank_measure`) has measured candidates of 40 strictly
held-out tasks. Reported are, as means over tasks (and `--seeds`) with an interval by bootstrap over
both: how well the language model and the cost model order the candidates, and what the language
model writes at the best quality, at the worst, and what is drawn at random; and the best of the
first k after the same search before the device (`tlmd/generate/search.py`) among as many candidates
that the language model wrote or that were drawn at random. How fast written programs are is
predicted by trees that were fitted to the bank itself: their own error on candidates that they have
not seen is reported as `judge`. The headline `ratio` is the mean predicted speed of what is written
at the best quality over that of random candidates.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import report, setting
from benchmarks.common.bootstrap import interval_over_seeds
from benchmarks.learning import bank_judge
from benchmarks.learning.bank_tasks import BANK
from tlmd.data.config import GenerateConfig

_BY_KIND = (
    *("log p", "cost model", "random", "best written"),
    *("random + search @1", "TLM + search @1", "random + search @16", "TLM + search @16"),
)


def main() -> int:
    """Judge, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--bank", type=Path, default=BANK)
    parser.add_argument("--samples", type=int, default=48, help="per task and quality (default 48)")
    parser.add_argument("--seeds", type=int, default=1, help="so many, --seed first (default 1)")
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
    rows = _rows(entries, checkpoint, judge, options)
    kinds = [entry.kind for entry in entries]
    gains = {
        f"@{k}": interval_over_seeds(rows[f"TLM + search @{k}"], rows[f"random + search @{k}"])
        for k in bank_judge.COUNTS
    }
    return {
        "benchmark": "bank",
        "machine": report.machine(),
        "seeds": options.seeds,
        "judge": error,
        "means": [
            {"figure": name, "mean": float(np.mean(v)), "interval": interval_over_seeds(v)}
            for name, v in rows.items()
        ],
        "kinds": [
            {"kind": kind, **{n: _mean_of(kind, kinds, rows[n]) for n in _BY_KIND}}
            for kind in sorted(set(kinds))
        ],
        "TLM + search over random + search": gains,
        "ratio": float(rows["best written"].mean() / rows["random"].mean()),
        "interval": interval_over_seeds(rows["best written"], rows["random"]),
        "meaning": "predicted speed of what is written at the best quality over random candidates",
    }


def _rows(entries: Sequence[Any], checkpoint: Any, judge: Any, options: Any) -> dict[str, Any]:
    """The figures by name, as arrays ``[seeds, tasks]``; a figure that no seed changes has one."""
    lists: dict[str, list[list[float]]] = defaultdict(list)
    for entry in entries:
        row = {name: [value] for name, value in bank_judge.rankings(entry, checkpoint).items()}
        for seed in range(options.seed, options.seed + options.seeds):
            drawn = bank_judge.samples(
                entry, checkpoint, judge, options.samples, options.generations, seed + 1
            )
            for name, value in drawn.items():
                row.setdefault(name, []).append(value)
        for name, values in row.items():
            lists[name].append(values)
        means = {name: round(float(np.mean(values)), 3) for name, values in row.items()}
        print(entry.kind, means, file=sys.stderr, flush=True)
    return {name: np.array(values).T for name, values in lists.items()}


def _mean_of(kind: str, kinds: Sequence[str], values: Any) -> float:
    return float(values[:, [one == kind for one in kinds]].mean())


if __name__ == "__main__":
    sys.exit(main())
