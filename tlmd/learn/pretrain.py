"""Make TLM-base: `python -m tlmd.learn.pretrain --records FILE --out DIR`.

The cost model is fitted to measured records. The language model learns from random legal sentences
of the training corpus, each with its quality: the measured one or, for most of them, the one that
the cost model predicts. Held-out networks contribute nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch

from tlmd.config import SHIPPED
from tlmd.language.sentence import quality_word
from tlmd.learn.demonstrations import quality as by_quality
from tlmd.learn.encoding import Encoder
from tlmd.learn.feature_tables import FeatureTables
from tlmd.model import checkpoint as checkpoints
from tlmd.model import network
from tlmd.model.checkpoint import Checkpoint
from tlmd.model.cost_model import CostModel, Measured
from tlmd.model.training import Demonstration, Trainer, TrainingPlan
from tlmd.records.dataset import read_dataset
from tlmd.records.store import RecordStore
from tlmd.space.cache import SpaceCache
from tlmd.space.features import FeatureExtractors, speedup
from tlmd.space.space import InvalidCandidate, TaskSpace
from tlmd.types import Candidate, Record, Task

_VALIDATION = 20  # every twentieth task is kept out of training to measure the loss


def main(arguments: list[str]) -> int:
    """Train and save; progress goes to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--records", type=Path, required=True, help="a data set, or the store of a state directory"
    )
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--sentences", type=int, default=40, help="random sentences per task")
    parser.add_argument("--minutes", type=float, default=25, help="time for the language model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tasks, records = read(options.records)
    base = Checkpoint(0, options.preset, network.create(options.preset, options.seed), CostModel())
    spaces = SpaceCache()
    base.cost_model = fit_cost_model(FeatureTables(spaces), tasks, records, options.seed)
    rng = Random(options.seed)
    grader = Grader(base.cost_model, FeatureExtractors(), rng, options.sentences)
    demonstrations, kept_out = sentences(spaces, grader, tasks, records)
    print(f"{len(demonstrations)} sentences, {len(kept_out)} kept out", flush=True)
    loss = train(base, demonstrations, kept_out, options.minutes, options.seed)
    base.notes = {
        "tasks": len(tasks),
        "measured": sum(map(len, records.values())),
        "sentences": len(demonstrations),
        "validation_nats_per_decision": round(loss, 4),
    }
    checkpoints.save(base, options.out)
    print(f"saved {options.out}: {base.notes}")
    return 0


def read(path: Path) -> tuple[list[Task], dict[str, list[Record]]]:
    """Tasks, and the newest record of each of their candidates. Raises `BadInput`."""
    if path.suffix == ".sqlite":  # it has the features, which a data set leaves out
        with RecordStore(path, read_only=True) as store:
            known, found = store.tasks(), store.all_records()
    else:
        data = read_dataset(path)
        known, found = list(data.tasks), list(data.records)
    newest: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in sorted(found, key=lambda r: r.created):
        newest[record.candidate.task_id][record.candidate.id] = record
    records = defaultdict(list, {task: list(those.values()) for task, those in newest.items()})
    return [task for task in known if task.module], records


def fit_cost_model(
    tables: FeatureTables, tasks: list[Task], records: dict[str, list[Record]], seed: int
) -> CostModel:
    """Fit to all measurements; prints how well it ranks tasks that it has not seen."""
    found = [tables.table(t, records[t.id]) for t in tasks if len(records[t.id]) >= 4]
    kept_out = [table for i, table in enumerate(found) if i % 5 == 0]
    rest = [table for i, table in enumerate(found) if i % 5]
    trial = CostModel().fit(rest, seed=seed)
    if kept_out:
        share = np.mean([_top_share(trial, table) for table in kept_out])
        print(f"cost model: first pick reaches {share:.2f} of the best on unseen tasks", flush=True)
    return CostModel().fit(found, seed=seed)


def _top_share(cost_model: CostModel, table: Measured) -> float:
    """Best time over the time of the cost model's first pick."""
    pick = int(cost_model.score(table.features, table.speedups).argmax())
    return float(table.seconds.min() / table.seconds[pick])


@dataclass(frozen=True)
class Grader:
    """Says how good a candidate is: as measured, else as the cost model predicts."""

    cost_model: CostModel
    extractors: FeatureExtractors
    rng: Random
    drawn: int
    """Random candidates per task."""

    def grade(self, space: TaskSpace, records: list[Record]) -> list[tuple[Candidate, str, float]]:
        """Candidates of a task with their quality word and their weight."""
        measured = by_quality(records)
        return [
            *((c.record.candidate, c.quality, c.record.outcome.weight) for c in measured),
            *self._predicted(space),
        ]

    def _predicted(self, space: TaskSpace) -> list[tuple[Candidate, str, float]]:
        drawn: dict[str, Candidate] = {}
        schedules = []
        for _ in range(self.drawn):
            try:
                candidate = space.random(self.rng)
                if candidate.id not in drawn:
                    schedules.append(space.finish(candidate))
                    drawn[candidate.id] = candidate
            except InvalidCandidate:
                continue
        target = space.task.target
        features = self.extractors.of(target).rows(schedules)
        scores = self.cost_model.score(features, speedup(features, target.cores))
        top = float(scores.max()) if len(scores) else 0.0
        return [
            (candidate, quality_word(float(score), top), 1.0)  # both are speeds
            for candidate, score in zip(drawn.values(), scores, strict=True)
        ]


def sentences(
    spaces: SpaceCache, grader: Grader, tasks: list[Task], records: dict[str, list[Record]]
) -> tuple[list[Demonstration], list[Demonstration]]:
    """Demonstrations to train on and to validate with."""
    training: list[Demonstration] = []
    kept_out: list[Demonstration] = []
    for number, task in enumerate(sorted(tasks, key=lambda t: t.id)):
        space = spaces.get(task)
        encoder = Encoder(space)
        into = kept_out if number % _VALIDATION == 0 else training
        for candidate, quality, weight in grader.grade(space, records[task.id]):
            encoded = encoder.encode(candidate)
            if encoded is not None:
                into.append(encoded.demonstration(quality, weight))
    return training, kept_out


def train(
    base: Checkpoint,
    demonstrations: list[Demonstration],
    kept_out: list[Demonstration],
    minutes: float,
    seed: int,
) -> float:
    """Train for about `minutes`; the validation loss in nats per decided token."""
    probe = Trainer(base.model, TrainingPlan(steps=8, seed=seed))
    begin = time.monotonic()
    probe.fit(demonstrations)
    per_step = (time.monotonic() - begin) / 8
    steps = max(20, int(minutes * 60 / per_step))
    trainer = Trainer(base.model, TrainingPlan(steps=steps, seed=seed))

    def report(step: int, loss: float) -> bool:
        if step % 200 == 0:
            held = trainer.evaluate(kept_out[:400])
            print(f"step {step} of {steps}: loss {loss:.3f}, validation {held:.3f}", flush=True)
        return True

    trainer.fit(demonstrations, report)
    return trainer.evaluate(kept_out[:2000])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
