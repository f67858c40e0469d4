"""Does the cost model still learn from more records? The curve of the campaigns, on the bank.

`python -m benchmarks.campaign_curve [--json FILE] [--figure FILE]` fits the cost model to growing
parts of the campaigns: first to a random eighth, a quarter, a half and all of the tasks of the
networks, then to these and a growing part of the synthetic tasks, then to all of these and a part
of the operators that networks have seldom. Each is judged on the bank, whose networks train
nothing; nothing is measured. Intervals are by bootstrap over tasks. The headline
`ratio` is the mean rank correlation with all records over that with a half of them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import report
from benchmarks.common.bootstrap import interval
from benchmarks.learning import bank_judge
from benchmarks.learning.bank_tasks import BANK

_DATA = Path("benchmarks/learning/data")
_CAMPAIGNS = {
    "networks": _DATA / "campaign.msgpack.gz",
    "and synthetic": _DATA / "synthetic.msgpack.xz",
    "and seldom": _DATA / "seldom.msgpack.xz",
}
_PARTS = (1 / 8, 1 / 4, 1 / 2, 1)
_COLUMNS = {
    "rank correlation": "cost model",
    "first pick": "cost model @1",
    "best of 8": "cost model @8",
}


def main() -> int:
    """Fit, judge, print, write, draw."""
    parser = report.parser(__doc__, figure=True)
    options = parser.parse_args()
    document = report.document(options, _measure)
    report.show("the cost model on the bank: means over tasks, 95 %", document["rows"])
    report.finish(document, options.json)
    if options.figure:
        _draw(document, options.figure)
    return 0


def _measure(options: Any) -> report.Row:
    from tlmd.tlm.cost_model import CostModel

    here, bank = report.machine(), bank_judge.entries(BANK)
    chosen: list[tuple[str, list[Any]]] = []
    before: list[Any] = []
    for name, path in _CAMPAIGNS.items():
        tables = _tables(path, options.seed)
        chosen += [(name, before + tables[: round(part * len(tables))]) for part in _PARTS]
        before = before + tables
    rows: list[report.Row] = []
    for name, tables in chosen:
        model = CostModel().fit(tables, seed=options.seed)
        rows.append({"tasks": name, "records": sum(len(t.seconds) for t in tables)})
        judged = [_judged(entry, model) for entry in bank]
        for column, figure in _COLUMNS.items():
            values = [row[figure] for row in judged]
            rows[-1] |= {column: float(np.mean(values)), f"{column} 95 %": interval(values)}
        print(rows[-1], file=sys.stderr, flush=True)
    half = min(rows, key=lambda row: abs(row["records"] - rows[-1]["records"] / 2))
    return {
        "benchmark": "campaign_curve",
        "machine": here,
        "rows": rows,
        "ratio": rows[-1]["rank correlation"] / half["rank correlation"],
        "meaning": "rank correlation with all records over that with about half of them",
    }


def _tables(path: Path, seed: int) -> list[Any]:
    """What the cost model is fitted to, by task, in a random order."""
    from tlmd.learn.encode_records import read_all_records
    from tlmd.learn.feature_tables import FeatureTables
    from tlmd.space.cache import SpaceCache

    tasks, records = read_all_records([path])
    tables = FeatureTables(SpaceCache()).tables(sorted(tasks, key=lambda t: t.id), records)
    random.Random(seed).shuffle(tables)
    return tables


def _judged(entry: Any, model: Any) -> report.Row:
    from tlmd.tlm.ranking import spearman

    table = entry.table
    scores = model.score(table.features, table.speedups, table.decisions)
    speeds = table.seconds.min() / table.seconds
    order = np.argsort(-scores, kind="stable")
    picks = {f"cost model @{k}": float(speeds[order[:k]].max()) for k in (1, 8)}
    return {"cost model": spearman(scores, speeds), **picks}


def _draw(document: report.Row, path: Path) -> None:
    """A line for each figure over the number of records."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows: Sequence[report.Row] = document["rows"]
    records = [row["records"] for row in rows]
    figure, axes = pyplot.subplots(figsize=(7, 3.8), layout="constrained")
    for column, colour in zip(_COLUMNS, ("#2b6cb0", "#c47a33", "#5a6b7b"), strict=True):
        low, high = zip(*(row[f"{column} 95 %"] for row in rows), strict=True)
        axes.fill_between(records, low, high, color=colour, alpha=0.12, lw=0)
        axes.plot(records, [row[column] for row in rows], "o-", color=colour, ms=4, label=column)
    ends = {row["tasks"]: row["records"] for row in rows}  # the last row of each name counts
    for name, end in ends.items():
        axes.axvline(end, color="#dde3ea", zorder=0)
        axes.annotate(
            name,
            (end, axes.get_ylim()[0]),
            ha="right",
            va="bottom",
            fontsize=8,
            color="#5a6b7b",
            xytext=(-3, 3),
            textcoords="offset points",
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%d"))
    axes.set_xticks([*records[:3], *ends.values()])
    axes.minorticks_off()
    axes.set_xlabel("measured candidates that it was fitted to")
    axes.set_ylabel("share of the best speed; correlation")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=8, loc="outside upper left", ncols=3)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    sys.exit(main())
