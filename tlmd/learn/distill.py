"""Demonstrations without measuring: `python -m tlmd.learn.distill --tasks FILE --out FILE`.

For each task, candidates are drawn at random and improved by moves under the cost model's trees on
decisions; their predicted speeds are the labels. So the language model learns what the cost model
knows, on tasks that were never measured. `FILE` is a file of tasks or a data set.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path

from tlmd.data.config import SHIPPED
from tlmd.data.errors import BadInput
from tlmd.data.types import Task
from tlmd.generate.search import DecisionSearch
from tlmd.language.uniform import draw_uniform
from tlmd.learn.candidate_encoder import Encoder
from tlmd.records.task_file import read_tasks
from tlmd.space.space import TaskSpace
from tlmd.tlm import checkpoint as checkpoints
from tlmd.tlm.cost_model import CostModel
from tlmd.tlm.demonstration import TaskDemonstrations, count_demonstrations
from tlmd.tlm.demonstration_file import write_demonstrations

_DRAWN = 96  # candidates of a task that are drawn at random
_GENERATIONS = 3
_BEST = 0.25  # share of the demonstrations that are the best found; the others are drawn from all


def main(arguments: list[str]) -> int:
    """Distil and write; progress goes to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, default=SHIPPED, help="whose cost model labels")
    parser.add_argument("--per-task", type=int, default=48, help="demonstrations (default 48)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    cost_model = checkpoints.load(options.checkpoint).cost_model
    if not cost_model.knows_decisions:
        raise BadInput(f"the cost model of {options.checkpoint} cannot rank decisions")
    tasks = {task.id: task for path in options.tasks for task in read_tasks(path)}
    made = []
    for number, task in enumerate(tasks.values()):
        made += distilled(task, cost_model, options.per_task, random.Random(options.seed + number))
        if number % 100 == 0:
            print(f"{number} of {len(tasks)} tasks", flush=True)
    write_demonstrations(options.out, made)
    print(f"{len(made)} tasks, {count_demonstrations(made)} demonstrations in {options.out}")
    return 0


def distilled(
    task: Task, cost_model: CostModel, count: int, rng: random.Random
) -> list[TaskDemonstrations]:
    """At most `count` demonstrations of one task; none where there is nothing to choose."""
    space = TaskSpace(task)
    search = DecisionSearch(space, cost_model, rng)
    locations = space.quick_locations
    drawn = [draw_uniform(rng, task.id, space.sketches, locations) for _ in range(_DRAWN)]
    ordered = search.explore(drawn, _GENERATIONS)
    top = max(search.scores.values())
    best = round(count * _BEST)
    rest = ordered[best:]
    chosen = ordered[:best] + rng.sample(rest, min(count - best, len(rest)))
    if len(chosen) < 2 or top <= 0:
        return []
    encoder = Encoder(space, locations)
    encoded = ((encoder.encode(c), max(search.scores[c.id], 0.0) / top) for c in chosen)
    sentences = tuple(replace(one, share=share) for one, share in encoded if one is not None)
    return [TaskDemonstrations(task.id, encoder.prompt, sentences)] if sentences else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
