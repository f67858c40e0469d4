"""Make TLM-base: `python -m tlmd.learn.make_base --records FILE --model WEIGHTS --out DIR`.

The cost model is fitted to the measured records, without those whose build took too long: their
speed is unknown. `WEIGHTS` is the language model that `python -m tlmd.tlm.pretrain` has trained;
without it the checkpoint has random weights, and serves for its cost model only.

`--start DIR` keeps the trees of a checkpoint and adds new ones, for records of programs that it has
not seen. So that these do not spoil what it knows, `--replay` gives records that it has seen; some
tasks of each of these files are trained on, too. Features take longest (one core: about two tasks a
second), so this is much shorter than fitting all trees again.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from tlmd.data.config import SHIPPED
from tlmd.learn.demonstrations import write_replay
from tlmd.learn.encode_records import add_records_option, read_all_records
from tlmd.learn.feature_tables import FeatureTables
from tlmd.space.cache import SpaceCache
from tlmd.tlm import checkpoint as checkpoints
from tlmd.tlm import network
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.cost_model import CostModel, Measured
from tlmd.tlm.demonstration_file import read_demonstrations

_REPLAYED = 250  # tasks of a file, at most: rare kinds stay known
_ADDED = 120  # trees


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
    parser.add_argument("--start", type=Path, help="a checkpoint, whose trees are kept")
    parser.add_argument("--replay", type=Path, nargs="*", default=(), help="what it was fitted to")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--preset", default="nano", choices=sorted(network.PRESETS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    start = checkpoints.load(options.start) if options.start else _untrained(options.preset)
    model = start.model
    if options.model:
        model.load_state_dict(safetensors.torch.load_file(options.model), strict=False)
    tables = FeatureTables(SpaceCache())
    tasks, records = read_all_records(options.records)
    new = tables.tables(tasks, records)
    seen = [table for path in options.replay for table in _some(tables, path)]
    cost_model = fit_cost_model(new, seen, start.cost_model, options.seed)
    counts = {"tasks": len(tasks), "measured": sum(len(records[t.id]) for t in tasks)}
    notes = {name: count + start.notes.get(name, 0) for name, count in counts.items()}
    checkpoints.save(Checkpoint(0, start.preset, model, cost_model, notes), options.out)
    shown = [task for path in options.demonstrations for task in read_demonstrations(path)]
    if shown:
        write_replay(options.out, shown, options.seed)
    print(f"saved {options.out}: {notes}")
    return 0


def _untrained(preset: str) -> Checkpoint:
    return Checkpoint(0, preset, network.create(preset), CostModel(), {})


def fit_cost_model(
    new: list[Measured], seen: list[Measured], start: CostModel, seed: int
) -> CostModel:
    """Fit to all measurements; prints how well it ranks tasks of `new` that it has not seen."""
    kept_out = [t for t in new[::5] if np.isfinite(t.seconds).any()]
    rest = [table for i, table in enumerate(new) if i % 5]
    if kept_out:
        if start.trained:
            _show("before", start, kept_out)
        _show("cost model", _fit([*rest, *seen], start, seed), kept_out)
    return _fit([*new, *seen], start, seed)


def _some(tables: FeatureTables, path: Path) -> list[Measured]:
    """At most `_REPLAYED` tasks of a file, evenly chosen."""
    tasks, records = read_all_records([path])
    return tables.tables(tasks[:: max(1, math.ceil(len(tasks) / _REPLAYED))], records)


def _fit(measured: list[Measured], start: CostModel, seed: int) -> CostModel:
    return start.adapt(measured, _ADDED, seed) if start.trained else start.fit(measured, seed=seed)


def _show(name: str, cost_model: CostModel, kept_out: list[Measured]) -> None:
    share = np.mean([_top_share(cost_model, table) for table in kept_out])
    print(f"{name}: first pick reaches {share:.2f} of the best on unseen tasks", flush=True)


def _top_share(cost_model: CostModel, table: Measured) -> float:
    """Best time over the time of the cost model's first pick."""
    pick = int(cost_model.score(table.features, table.speedups, table.decisions).argmax())
    return float(table.seconds.min() / table.seconds[pick])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
