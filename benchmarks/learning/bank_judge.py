"""What `bank` and `ablation` say of a checkpoint: how it orders the bank's candidates and writes.

Nothing is measured. How fast a written program is is predicted by trees that were fitted to the
whole bank, on features and decisions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import report, setting
from benchmarks.learning.bank_tasks import kinds_of
from tlmd.data.config import GenerateConfig
from tlmd.data.types import Candidate, Record, Task
from tlmd.generate.search import DecisionSearch
from tlmd.language.sentence import BEST_QUALITY, WORST_QUALITY
from tlmd.space.space import TaskSpace
from tlmd.tlm.cost_model import CostModel
from tlmd.tlm.ranking import spearman

Rewrite = Callable[[Sequence[int]], tuple[int, ...]]
"""Makes another prompt of a prompt: what a language model was trained with."""
COUNTS = (1, 4, 10, 16)
"""After so many of the picks of a search the best one is reported."""


@dataclass(frozen=True)
class Entry:
    """One task of the bank."""

    task: Task
    kind: str
    records: list[Record]
    table: Any
    """Features and seconds, of the records that have a program."""


def entries(path: Path) -> list[Entry]:
    from tlmd.learn.encode_records import read_records
    from tlmd.learn.feature_tables import FeatureTables
    from tlmd.space.cache import SpaceCache

    tasks, records = read_records(path)
    tables = FeatureTables(SpaceCache())
    return [
        Entry(task, kind, records[task.id], tables.table(task, records[task.id]))
        for task, kind in zip(tasks, kinds_of(tasks), strict=True)
    ]


def fit_judge(bank: Sequence[Entry]) -> tuple[Any, report.Row]:
    """Trees fitted to the whole bank; and how well those of four fifths order the last fifth."""
    from tlmd.tlm.cost_model import Measured

    def part(table: Any, last: bool) -> Any:
        chosen = (np.arange(len(table.seconds)) % 5 == 4) == last
        speedups = None if table.speedups is None else table.speedups[chosen]
        decisions = table.decisions[chosen]
        return Measured(table.features[chosen], table.seconds[chosen], None, speedups, decisions)

    trial = CostModel().fit([part(e.table, last=False) for e in bank])
    unseen = [part(e.table, last=True) for e in bank]
    orders = [
        spearman(trial.score(t.features, t.speedups, t.decisions), 1 / t.seconds) for t in unseen
    ]
    judge = CostModel().fit([e.table for e in bank])
    return judge, {"rank correlation on unseen candidates": float(np.mean(orders))}


def rankings(entry: Entry, checkpoint: Any, rewrite: Rewrite = tuple) -> dict[str, float]:
    """How well the language model and the cost model order the measured candidates."""
    from tlmd.learn.encode_records import encode_task
    from tlmd.tlm.demonstration import TaskTensors
    from tlmd.tlm.ranking import rank

    encoded = encode_task(entry.task, entry.records)
    encoded = replace(encoded, prompt=rewrite(encoded.prompt))
    known = rank(checkpoint.model, [TaskTensors(encoded)])
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


def samples(
    entry: Entry,
    checkpoint: Any,
    judge: Any,
    count: int,
    generations: int,
    seed: int,
    drawn: bool = True,
    searched: bool = True,
    rewrite: Rewrite = tuple,
) -> dict[str, float]:
    """Predicted speeds of `count` written candidates, as shares of the best of the bank.

    The search before the device starts with `GenerateConfig.wide` times as many. ``drawn``: the
    same of candidates that are drawn at random. ``searched``: with the search.
    """
    from tlmd.language.prompt import prompt
    from tlmd.language.uniform import draw_uniform
    from tlmd.tlm.sampling import Sampler, SampleRequest

    space, rng = TaskSpace(entry.task), random.Random(seed)
    words = rewrite(prompt(space.computation, entry.task.target, space.sketches))
    sampler = Sampler(checkpoint.model, seed=seed)

    def written(count: int, quality: str = BEST_QUALITY) -> list[Candidate]:
        request = SampleRequest(
            entry.task.id, words, space.sketches, space.quick_locations, count, quality
        )
        ordered = sorted(sampler.sample(request), key=lambda sample: -sample.score)
        return [sample.candidate for sample in ordered]

    wide = count * GenerateConfig().wide
    sources = {"TLM": written(wide)} if searched else {}
    found = {"best written": written(count), "worst written": written(count, WORST_QUALITY)}
    if searched:
        found["preferred"] = sources["TLM"][:count]
    if drawn:
        sources["random"] = [
            draw_uniform(rng, entry.task.id, space.sketches, space.quick_locations)
            for _ in range(wide)
        ]
        found["random"] = list(setting.random_candidates(space, count, seed))
        found["uniform"] = sources["random"][:count]
    row = {
        name: float(_Applied(space, candidates).shares(judge).sum()) / count
        for name, candidates in found.items()
    }
    row["distinct"] = len({c.id for c in found["best written"]}) / count
    for name, candidates in sources.items():
        search = DecisionSearch(space, checkpoint.cost_model, rng)
        ordered = search.explore(candidates, generations)
        applied = _Applied(space, search.diverse(ordered, count))
        # What is measured first is what the checkpoint's cost model puts first.
        order = np.argsort(-applied.scores(checkpoint.cost_model), kind="stable")
        shares = applied.shares(judge)[order]
        row |= {f"{name} + search @{k}": float(shares[:k].max()) for k in COUNTS}
    return row


class _Applied:
    """Candidates of one task with their features, without those that TVM refuses."""

    def __init__(self, space: TaskSpace, candidates: Sequence[Candidate]) -> None:
        from tlmd.space.features import FeatureExtractor, speedup
        from tlmd.space.space import InvalidCandidate
        from tlmd.tlm.decision_features import decision_features

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
