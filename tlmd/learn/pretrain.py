"""Make TLM-base: `python -m tlmd.learn.pretrain --records FILE --model WEIGHTS --out DIR`.

The cost model is fitted to the measured records, without those whose build took too long: their
speed is unknown. `WEIGHTS` is the language model that `python -m tlmd.model.pretrain` has trained;
without it the checkpoint has random weights, and serves for its cost model only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from tlmd.config import SHIPPED
from tlmd.learn.demonstrations import write_replay
from tlmd.learn.encode import add_records_option, read_all_records
from tlmd.learn.feature_tables import FeatureTables
from tlmd.model import checkpoint as checkpoints
from tlmd.model import network
from tlmd.model.checkpoint import Checkpoint
from tlmd.model.cost_model import CostModel, Measured
from tlmd.model.demonstration_file import read_demonstrations
from tlmd.space.cache import SpaceCache
from tlmd.types import Record, Task


def main(arguments: list[str]) -> int:
    """Fit the cost model and save the checkpoint; progress goes to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_records_option(parser)
    parser.add_argument("--model", type=Path, help="a .safetensors file")
    parser.add_argument(
        "--demonstrations",
        type=Path,
        nargs="*",
        default=(),
        help="what it was trained on; some are kept for fine-tuning",
    )
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--preset", default="nano", choices=sorted(network.PRESETS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tasks, records = read_all_records(options.records)
    model = network.create(options.preset)
    if options.model:
        model.load_state_dict(safetensors.torch.load_file(options.model), strict=False)
    cost_model = fit_cost_model(FeatureTables(SpaceCache()), tasks, records, options.seed)
    notes = {"tasks": len(tasks), "measured": sum(len(records[t.id]) for t in tasks)}
    checkpoints.save(Checkpoint(0, options.preset, model, cost_model, notes), options.out)
    shown = [task for path in options.demonstrations for task in read_demonstrations(path)]
    if shown:
        write_replay(options.out, shown, options.seed)
    print(f"saved {options.out}: {notes}")
    return 0


def fit_cost_model(
    tables: FeatureTables, tasks: list[Task], records: dict[str, list[Record]], seed: int
) -> CostModel:
    """Fit to all measurements; prints how well it ranks tasks that it has not seen."""
    found = [tables.table(t, records[t.id]) for t in tasks if len(records[t.id]) >= 4]
    kept_out = [t for t in found[::5] if np.isfinite(t.seconds).any()]
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
