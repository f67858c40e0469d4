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

import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report, setting
from benchmarks.bank_tasks import KINDS
from tlmd.config import GenerateConfig
from tlmd.generate.search import DecisionSearch
from tlmd.language.sentence import BEST_QUALITY, WORST_QUALITY
from tlmd.model.cost_model import CostModel
from tlmd.model.ranking import spearman
from tlmd.space.space import TaskSpace
from tlmd.types import Candidate, Record, Task

_RESAMPLES = 1000
_COUNTS = (1, 4, 10, 16)
_BY_KIND = (
    *("log p", "cost model", "random", "best written"),
    *("random + search @1", "TLM + search @1", "random + search @16", "TLM + search @16"),
)


def main() -> int:
    """Judge, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--bank", type=Path, default=Path("benchmarks/data/bank.msgpack.gz"))
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


@dataclass(frozen=True)
class _Entry:
    """One task of the bank."""

    task: Task
    kind: str
    records: list[Record]
    table: Any
    """Features and seconds, of the records that have a program."""


def _judge(options: Any) -> report.Row:
    import torch

    torch.set_num_threads(1)
    checkpoint = setting.load(options.checkpoint, options.untrained)
    entries = _entries(options.bank)[: options.limit]
    judge, error = _fit_judge(entries)
    rows: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        row = _rankings(entry, checkpoint) | _samples(entry, checkpoint, judge, options)
        for name, value in row.items():
            rows[name].append(value)
        print(entry.kind, {k: round(v, 3) for k, v in row.items()}, file=sys.stderr, flush=True)
    kinds = [entry.kind for entry in entries]
    best, drawn = np.array(rows["best written"]), np.array(rows["random"])
    gains = {
        f"@{k}": _interval_of_ratio(
            *(np.array(rows[f"{name} + search @{k}"]) for name in ("TLM", "random"))
        )
        for k in _COUNTS
    }
    return {
        "benchmark": "bank",
        "machine": report.machine(),
        "judge": error,
        "means": [
            {"figure": name, "mean": float(np.mean(v)), "interval": _interval(v)}
            for name, v in rows.items()
        ],
        "kinds": [
            {"kind": kind, **{n: _mean_of(kind, kinds, rows[n]) for n in _BY_KIND}}
            for kind in sorted(set(kinds))
        ],
        "TLM + search over random + search": gains,
        "ratio": float(best.mean() / drawn.mean()),
        "interval": _interval_of_ratio(best, drawn),
        "meaning": "predicted speed of what is written at the best quality over random candidates",
    }


def _entries(path: Path) -> list[_Entry]:
    from tlmd.learn.encode import read_records
    from tlmd.learn.feature_tables import FeatureTables
    from tlmd.space.cache import SpaceCache

    tasks, records = read_records(path)
    tables = FeatureTables(SpaceCache())
    return [
        _Entry(task, kind, records[task.id], tables.table(task, records[task.id]))
        for task, kind in zip(tasks, KINDS, strict=True)
    ]


def _fit_judge(entries: Sequence[_Entry]) -> tuple[Any, report.Row]:
    """Trees fitted to the whole bank; and how well those of four fifths order the last fifth."""
    from tlmd.model.cost_model import Measured

    def part(table: Any, last: bool) -> Any:
        chosen = (np.arange(len(table.seconds)) % 5 == 4) == last
        speedups = None if table.speedups is None else table.speedups[chosen]
        decisions = table.decisions[chosen]
        return Measured(table.features[chosen], table.seconds[chosen], None, speedups, decisions)

    trial = CostModel().fit([part(e.table, last=False) for e in entries])
    unseen = [part(e.table, last=True) for e in entries]
    orders = [
        spearman(trial.score(t.features, t.speedups, t.decisions), 1 / t.seconds) for t in unseen
    ]
    judge = CostModel().fit([e.table for e in entries])
    return judge, {"rank correlation on unseen candidates": float(np.mean(orders))}


def _rankings(entry: _Entry, checkpoint: Any) -> dict[str, float]:
    """How well the language model and the cost model order the measured candidates."""
    from tlmd.learn.encode import encode_task
    from tlmd.model.demonstration import TaskTensors
    from tlmd.model.ranking import rank

    known = rank(checkpoint.model, [TaskTensors(encode_task(entry.task, entry.records))])
    table = entry.table
    scores = checkpoint.cost_model.score(table.features, table.speedups, table.decisions)
    alone = checkpoint.cost_model.score_decisions(table.decisions, table.speedups)
    order = np.argsort(-scores, kind="stable")
    speeds = table.seconds.min() / table.seconds
    return {
        "log p": known.correlation,
        "log p best - worst": known.contrast,
        "first of the TLM": known.first,
        "cost model": spearman(scores, speeds),
        "its trees on decisions": spearman(alone, speeds),
        **{f"cost model @{k}": float(speeds[order[:k]].max()) for k in (1, 4, 8)},
    }


def _samples(entry: _Entry, checkpoint: Any, judge: Any, options: Any) -> dict[str, float]:
    """Predicted speeds of what is written, as shares of the best of the bank."""
    from tlmd.language.prompt import prompt
    from tlmd.language.uniform import draw_uniform
    from tlmd.model.sampling import Sampler, SampleRequest

    space, count, rng = TaskSpace(entry.task), options.samples, random.Random(1)
    words = tuple(prompt(space.computation, entry.task.target, space.sketches))
    sampler = Sampler(checkpoint.model, seed=1)

    def written(count: int, quality: str = BEST_QUALITY) -> list[Candidate]:
        request = SampleRequest(
            entry.task.id, words, space.sketches, space.quick_locations, count, quality
        )
        ordered = sorted(sampler.sample(request), key=lambda sample: -sample.score)
        return [sample.candidate for sample in ordered]

    wide = count * GenerateConfig().wide
    sources = {
        "TLM": written(wide),
        "random": [
            draw_uniform(rng, entry.task.id, space.sketches, space.quick_locations)
            for _ in range(wide)
        ],
    }
    found = {
        "best written": written(count),
        "worst written": written(count, WORST_QUALITY),
        "preferred": sources["TLM"][:count],
        "random": list(setting.random_candidates(space, count, 1)),
        "uniform": sources["random"][:count],
    }
    row = {
        name: float(_Applied(space, candidates).shares(judge).sum()) / count
        for name, candidates in found.items()
    }
    row["distinct"] = len({c.id for c in found["best written"]}) / count
    for name, candidates in sources.items():
        search = DecisionSearch(space, checkpoint.cost_model, rng)
        ordered = search.explore(candidates, options.generations)
        applied = _Applied(space, search.diverse(ordered, count))
        # What is measured first is what the checkpoint's cost model puts first.
        order = np.argsort(-applied.scores(checkpoint.cost_model), kind="stable")
        shares = applied.shares(judge)[order]
        row |= {f"{name} + search @{k}": float(shares[:k].max()) for k in _COUNTS}
    return row


class _Applied:
    """Candidates of one task with their features, without those that TVM refuses."""

    def __init__(self, space: TaskSpace, candidates: Sequence[Candidate]) -> None:
        from tlmd.model.decision_features import decision_features
        from tlmd.space.features import FeatureExtractor, speedup
        from tlmd.space.space import InvalidCandidate

        schedules, legal = [], []
        for candidate in candidates:
            try:
                schedules.append(space.finish(candidate))
                legal.append(candidate)
            except InvalidCandidate:
                continue
        self._features = FeatureExtractor(space.task.target).rows(schedules)
        self._decisions = decision_features(space.computation, space.sketches, legal)
        self._speedups = speedup(self._features, space.task.target.cores)

    def scores(self, cost_model: CostModel) -> Any:
        """Predicted speeds ``[applied]``."""
        return cost_model.score(self._features, self._speedups, self._decisions)

    def shares(self, cost_model: CostModel) -> Any:
        """Predicted shares of the best ``[applied]``, 0 to 1."""
        return np.clip(self.scores(cost_model), 0, 1)


def _mean_of(kind: str, kinds: Sequence[str], values: Sequence[float]) -> float:
    return float(np.mean([v for k, v in zip(kinds, values, strict=True) if k == kind]))


def _interval(values: Sequence[float]) -> list[float]:
    drawn = _resampled(len(values))
    means = np.array(values)[drawn].mean(1)
    return [round(float(v), 3) for v in np.percentile(means, (2.5, 97.5))]


def _interval_of_ratio(above: Any, below: Any) -> list[float]:
    drawn = _resampled(len(above))
    ratios = above[drawn].mean(1) / below[drawn].mean(1)
    return [round(float(v), 3) for v in np.percentile(ratios, (2.5, 97.5))]


def _resampled(count: int) -> Any:
    return np.random.default_rng(0).integers(0, count, (_RESAMPLES, count))


if __name__ == "__main__":
    sys.exit(main())
