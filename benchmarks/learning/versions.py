"""Is a later version of the TLM better than the one before? Judged on the bank.

`python -m benchmarks.versions --state DIR` gives the records of a campaign to the trainer's
`FineTuner` in the order in which they were measured, in `--rounds` equal parts, with the
`--starts` (``train.start``) ``base`` and ``latest``. Each version is judged on the bank, of whose
networks no record is. The records (`--records`, default the synthetic tasks) have not trained the
shipped language model; its cost model has seen them, so only the language model is judged. `DIR`
keeps what is done, so that the same command goes on after an interruption. The headline `ratio` is
the predicted speed of what the last version writes over that of the shipped one.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.common import report, setting
from benchmarks.common.bootstrap import interval_of_ratio, mean_and_interval
from benchmarks.learning import bank_judge
from benchmarks.learning.bank_tasks import BANK
from tlmd.data.config import TrainConfig
from tlmd.data.types import Record, Task
from tlmd.tlm.checkpoint import Checkpoint

_RECORDS = Path("benchmarks/learning/data/synthetic.msgpack.xz")
_SHIPPED = "shipped"
_STARTS = ("base", "latest")
_FIGURES = ("log p", "log p best - worst", "best written", "worst written", "distinct")
Judged = list[dict[str, float]]
"""Figures of `bank_judge` of each task."""


def main() -> int:
    """Train, judge, print, write."""
    parser = report.parser(__doc__, state="keeps what is done")
    parser.add_argument("--records", type=Path, default=_RECORDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", choices=_STARTS, nargs="+", default=_STARTS)
    parser.add_argument("--samples", type=int, default=32, help="per task (default 32)")
    options = parser.parse_args()
    document = _document(options)
    report.show("means over the tasks of the bank, 95 %", document["rows"])
    report.finish(document, options.json)
    return 0


def _document(options: Any) -> report.Row:
    import torch

    torch.set_num_threads(1)
    shipped = setting.load(options.checkpoint, options.untrained)
    bank = _Bank(options)
    found = {_SHIPPED: bank.judged(_SHIPPED, shipped)}
    for start in options.starts:
        names = [_name(number, start, options) for number in range(1, options.rounds + 1)]
        if not all(map(bank.knows, names)):
            for name, version in zip(names, _versions(shipped, start, options), strict=True):
                print(_row(name, bank.judged(name, version)), file=sys.stderr, flush=True)
        found |= {name: bank.kept(name) for name in names}
    last = found[_name(options.rounds, options.starts[-1], options)]
    after, before = (_values(one, "best written") for one in (last, found[_SHIPPED]))
    return {
        "benchmark": "versions",
        "machine": report.machine(),
        "rows": [_row(name, judged) for name, judged in found.items()],
        "ratio": float(after.mean() / before.mean()),
        "interval": interval_of_ratio(after, before),
        "meaning": "predicted speed of what the last version writes over the shipped one",
    }


def _name(number: int, start: str, options: Any) -> str:
    return f"version {number} of {options.rounds}, from {start}"


class _Bank:
    """Judges checkpoints, each once."""

    def __init__(self, options: Any) -> None:
        self._options = options
        self._entries = bank_judge.entries(BANK)
        self._judge, _ = bank_judge.fit_judge(self._entries)

    def knows(self, name: str) -> bool:
        """Whether it was judged before."""
        return self._path(name).exists()

    def kept(self, name: str) -> Judged:
        """What was found before."""
        rows: Judged = json.loads(self._path(name).read_text())
        return rows

    def judged(self, name: str, checkpoint: Checkpoint) -> Judged:
        """The figures of a checkpoint; found now, unless they are known."""
        if not self.knows(name):
            rows = [self._figures(entry, checkpoint) for entry in self._entries]
            self._path(name).write_text(json.dumps(rows))
        return self.kept(name)

    def _path(self, name: str) -> Path:
        kept: Path = self._options.state / f"{name}.json"
        return kept

    def _figures(self, entry: bank_judge.Entry, checkpoint: Checkpoint) -> dict[str, float]:
        options = self._options
        return bank_judge.rankings(entry, checkpoint) | bank_judge.samples(
            *(entry, checkpoint, self._judge, options.samples, 0, options.seed + 1),
            drawn=False,
            searched=False,
        )


@functools.cache
def _records(path: Path) -> tuple[list[Task], list[Record]]:
    """Tasks, and their records in the order in which they were measured, with features.

    Data sets leave the features out; the daemon's records have them.
    """
    from tlmd.learn.encode_records import read_records
    from tlmd.learn.feature_tables import FeatureTables
    from tlmd.space.cache import SpaceCache
    from tlmd.space.features import pack_features

    tasks, by_task = read_records(path)
    tables = FeatureTables(SpaceCache())
    found = []
    for task in tasks:
        for record in by_task[task.id]:
            row = tables.row(task, record)
            found.append(record if row is None else replace(record, features=pack_features(row)))
    return tasks, sorted(found, key=lambda record: record.created)


def _versions(
    shipped: Checkpoint, start: Literal["base", "latest"], options: Any
) -> Iterator[Checkpoint]:
    """The checkpoint after each round."""
    from tlmd.learn.demonstrations import read_replay
    from tlmd.learn.finetune import FineTuner

    # The cost model stays the shipped one: it has seen these records.
    config = TrainConfig(start=start, rounds=0)
    tasks, records = _records(options.records)
    tuner = FineTuner(shipped, config, options.seed, replay=read_replay())
    tuner.add(tasks, [])
    for number, part in enumerate(_parts(records, options.rounds), 1):
        tuner.add([], part)
        checkpoint, made = tuner.train(number, lambda: False)
        print(
            f"{start} {number}: {made.demonstrations} demonstrations of {made.tasks} tasks, "
            f"{made.steps} steps, {made.seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        yield checkpoint


def _parts(records: Sequence[Record], rounds: int) -> list[Sequence[Record]]:
    ends = np.linspace(0, len(records), rounds + 1).astype(int)
    return [records[a:b] for a, b in itertools.pairwise(ends)]


def _row(name: str, judged: Judged) -> report.Row:
    row: report.Row = {"version": name}
    for figure in _FIGURES:
        row[figure] = mean_and_interval(_values(judged, figure))
    return row


def _values(judged: Judged, figure: str) -> Any:
    return np.array([row[figure] for row in judged])


if __name__ == "__main__":
    sys.exit(main())
