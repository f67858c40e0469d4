"""Encode records for training: `python -m tlmd.learn.encode_records --records FILE --out FILE`.

`python -m tlmd.tlm.pretrain` trains on `FILE`, on any machine and without TVM.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tlmd.data.types import Record, Status, Task
from tlmd.learn.candidate_encoder import Encoder
from tlmd.learn.demonstrations import shares
from tlmd.records.dataset import read_dataset
from tlmd.records.store import RecordStore
from tlmd.space.space import TaskSpace
from tlmd.tlm.demonstration import TaskDemonstrations, count_demonstrations
from tlmd.tlm.demonstration_file import write_demonstrations

_FEWEST = 4  # sentences; fewer show no differences


def main(arguments: list[str]) -> int:
    """Encode all tasks with their newest records; progress goes to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_records_option(parser)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    tasks, records = read_all_records(options.records)
    encoded = []
    for task in sorted(tasks, key=lambda t: t.id):
        made = encode_task(task, records[task.id])
        encoded += [made] if len(made.demonstrations) >= _FEWEST else []
        if len(encoded) % 100 == 0:
            print(f"{len(encoded)} of {len(tasks)} tasks", flush=True)
    write_demonstrations(options.out, encoded)
    print(f"{len(encoded)} tasks, {count_demonstrations(encoded)} demonstrations in {options.out}")
    return 0


def add_records_option(parser: argparse.ArgumentParser) -> None:
    """Add `--records`, whose files `read_all_records` reads."""
    parser.add_argument(
        "--records",
        type=Path,
        nargs="+",
        required=True,
        help="data sets, or the stores of state directories",
    )


def read_all_records(paths: Sequence[Path]) -> tuple[list[Task], dict[str, list[Record]]]:
    """As `read_records`, from several files. A task on two machines keeps the first one's records.

    Records whose build took too long are left out: nothing is known about the speed.
    """
    tasks: dict[str, Task] = {}
    records: dict[str, list[Record]] = defaultdict(list)
    for path in paths:
        new_tasks, new_records = read_records(path)
        for task in new_tasks:
            if task.id not in tasks:
                tasks[task.id] = task
                records[task.id] = [r for r in new_records[task.id] if not _is_unknown(r)]
    return list(tasks.values()), records


def _is_unknown(record: Record) -> bool:
    """Whether the program was never run, because its build was stopped."""
    return record.outcome.status is Status.TIMEOUT and "building" in record.outcome.detail


def read_records(path: Path) -> tuple[list[Task], dict[str, list[Record]]]:
    """Tasks, and the newest record of each of their candidates. Raises `BadInput`."""
    if path.suffix == ".sqlite":  # it has the features, which a data set leaves out
        with RecordStore(path, read_only=True) as store:
            tasks, stored = store.tasks(), store.all_records()
    else:
        data = read_dataset(path)
        tasks, stored = list(data.tasks), list(data.records)
    newest: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in sorted(stored, key=lambda r: r.created):
        newest[record.candidate.task_id][record.candidate.id] = record
    records = defaultdict(list, {task: list(those.values()) for task, those in newest.items()})
    return [task for task in tasks if task.module], records


def encode_task(task: Task, records: list[Record]) -> TaskDemonstrations:
    """The records of one task as sentences; those that the language cannot express are left out."""
    encoder = Encoder(TaskSpace(task))
    sentences = []
    for record, share in zip(records, shares(records), strict=True):
        encoded = encoder.encode(record.candidate)
        if encoded is not None:
            sentences.append(replace(encoded, share=share, weight=record.outcome.weight))
    return TaskDemonstrations(task.id, encoder.prompt, tuple(sentences))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
