"""Make TLM-base: `python -m tlmd.learn.pretrain --records FILE --out DIR`.

The ranker is fitted to measured records; the language model learns from random legal sentences of
the training corpus, each with the quality that was measured or, for the many that were not, the
one the ranker predicts. The held-out networks contribute nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path
from random import Random

import numpy as np
import torch

from tlmd.config import SHIPPED
from tlmd.generate.generator import Generator
from tlmd.language.sentence import quality_word
from tlmd.learn.demonstrations import quality as by_quality
from tlmd.learn.encoding import Encoder
from tlmd.model import checkpoint as checkpoints
from tlmd.model import network
from tlmd.model.checkpoint import Checkpoint
from tlmd.model.ranker import Measured, Ranker
from tlmd.model.training import Demonstration, Trainer, TrainingPlan
from tlmd.records.dataset import read_dataset
from tlmd.records.store import RecordStore
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
    base = Checkpoint(0, options.preset, network.create(options.preset, options.seed), Ranker())
    generator = Generator(base, seed=options.seed)
    base.ranker = fit_ranker(generator, tasks, records, options.seed)
    generator.swap(base)
    demonstrations, kept_out = sentences(generator, tasks, records, options.sentences, options.seed)
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


def fit_ranker(
    generator: Generator, tasks: list[Task], records: dict[str, list[Record]], seed: int
) -> Ranker:
    """The ranker of all measurements; prints how well it ranks tasks it has not seen."""
    tables = [generator.table(t, records[t.id]) for t in tasks if len(records[t.id]) >= 4]
    check = [t for i, t in enumerate(tables) if i % 5 == 0]
    rest = [t for i, t in enumerate(tables) if i % 5]
    trial = Ranker().fit(rest, seed=seed)
    found = [_top_share(trial, table) for table in check]
    if found:
        share = np.mean(found)
        print(f"ranker: its first pick reaches {share:.2f} of the best on unseen tasks", flush=True)
    return Ranker().fit(tables, seed=seed)


def _top_share(ranker: Ranker, table: Measured) -> float:
    """Best time over the time of the ranker's first pick."""
    pick = int(ranker.score(table.features).argmax())
    return float(table.seconds.min() / table.seconds[pick])


def sentences(
    generator: Generator,
    tasks: list[Task],
    records: dict[str, list[Record]],
    count: int,
    seed: int,
) -> tuple[list[Demonstration], list[Demonstration]]:
    """Demonstrations to train on and to validate with."""
    rng = Random(seed)
    training: list[Demonstration] = []
    kept_out: list[Demonstration] = []
    for number, task in enumerate(sorted(tasks, key=lambda t: t.id)):
        space = generator.space(task)
        encoder = Encoder(space)
        into = kept_out if number % _VALIDATION == 0 else training
        graded = _graded(generator, space, records[task.id], rng, count)
        for candidate, quality, weight in graded:
            encoded = encoder.encode(candidate)
            if encoded is not None:
                into.append(encoded.demonstration(quality, weight))
    return training, kept_out


def _graded(
    generator: Generator, space: TaskSpace, records: list[Record], rng: Random, count: int
) -> list[tuple[Candidate, str, float]]:
    """Measured candidates with quality and weight, random ones with the predicted quality."""
    graded = [(c.record.candidate, c.quality, c.record.outcome.weight) for c in by_quality(records)]
    drawn: dict[str, Candidate] = {}
    schedules = []
    for _ in range(count):
        try:
            candidate = space.random(rng)
            if candidate.id not in drawn:
                schedules.append(space.finish(candidate))
                drawn[candidate.id] = candidate
        except InvalidCandidate:
            continue
    scores = generator.checkpoint.ranker.score(generator.extractor(space.task).rows(schedules))
    top = float(scores.max()) if len(scores) else 0.0
    graded += [
        (candidate, quality_word(float(score), top), 1.0)  # both are speeds
        for candidate, score in zip(drawn.values(), scores, strict=True)
    ]
    return graded


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
