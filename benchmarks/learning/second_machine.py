"""How the shipped model does on another CPU than the bank's, before and after 500 measurements.

`python -m benchmarks.second_machine --state DIR`, on a CPU of another kind, measures some of the
bank's candidates again. This shows how well the times of one CPU order those of the other, and how
well the shipped model does. Then tlmd measures `--measurements` candidates of every second task, as
a job does, and fine-tunes on them. The fine-tuned model is judged on what was measured again, and
both models search the other tasks, of which neither has seen anything; what they find is timed in
interleaved rounds. `DIR` keeps what was measured, so that the same command goes on after an
interruption. The headline `ratio` is the speed of the best of 16 after over that before.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.common import report, setting
from benchmarks.common.bootstrap import geometric_mean_and_interval, mean_and_interval
from benchmarks.common.measured import measure_proposals, on_one_core, race, searched
from benchmarks.learning import bank_judge
from benchmarks.learning.bank_judge import Entry
from benchmarks.learning.bank_tasks import BANK
from tlmd.data.types import Candidate, Proposal, Record, Task
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.ranking import spearman

_COUNTS = (1, 4, 16)
_ORDERS = ("log p", "log p best - worst", "cost model", "cost model @1", "cost model @4")


def main() -> int:
    """Measure, fine-tune, judge, print, write."""
    parser = report.parser(__doc__, state="keeps what is measured")
    parser.add_argument("--candidates", type=int, default=32, help="of each task, measured again")
    parser.add_argument("--measurements", type=int, default=500, help="to fine-tune on")
    parser.add_argument("--races", type=int, default=20, help="tasks that both models search")
    options = parser.parse_args()
    document = _measure(options)
    report.show("on the bank's candidates: means over tasks, 95 %", document["orders"])
    report.show("speed after over before, geometric means", document["found"])
    report.finish(document, options.json)
    return 0


def _measure(options: Any) -> report.Row:
    here = report.machine()
    from tlmd.records.store import RecordStore
    from tlmd.space.hardware.target import resolve

    shipped = setting.load(options.checkpoint, options.untrained)
    there = bank_judge.entries(BANK)
    with (
        RecordStore(options.state / "again.sqlite") as again,
        RecordStore(options.state / "own.sqlite") as own,
        on_one_core(options.state) as measurer,
    ):
        tasks = [replace(entry.task, target=resolve("native", 1)) for entry in there]
        again.add_tasks(tasks)
        entries = [
            _measured_again(again, measurer, task, entry, options.candidates)
            for task, entry in zip(tasks, there, strict=True)
        ]
        learnt, kept = tasks[::2], tasks[1::2]
        own.add_tasks(learnt)
        each = -(-options.measurements // len(learnt))
        records = [r for t in learnt for r in _own(own, measurer, t, shipped, each, options.seed)]
        tuned = _fine_tuned(shipped, learnt, records, options.seed)
        races = [
            _race(measurer, task, shipped, tuned, options.seed) for task in kept[: options.races]
        ]
    found = [_gain(races, k) for k in _COUNTS]
    return {
        "benchmark": "second machine",
        "machine": here,
        "fingerprints": [there[0].task.target.fingerprint, tasks[0].target.fingerprint],
        "measured again": sum(len(entry.records) for entry in entries),
        "measurements": len(records),
        "orders": _orders(there, entries, shipped, tuned),
        "found": found,
        "ratio": found[-1]["mean"],
        "interval": found[-1]["interval"],
        "meaning": f"speed of the best of {_COUNTS[-1]}, after over before, on tasks not learnt",
    }


def _measured_again(store: Any, measurer: Any, task: Task, entry: Entry, count: int) -> Entry:
    """The task of the bank on this machine, with `count` of its candidates, drawn at random."""
    from tlmd.space.space import TaskSpace

    known = store.records(task.id, task.target.fingerprint)
    if not known:
        space = TaskSpace(task)
        records = [replace(record, candidate=here) for record, here in _translated(entry, task)]
        drawn = random.Random(0).sample(records, min(count, len(records)))
        known = measure_proposals(measurer, task, [_proposal(space, r) for r in drawn])
        store.add_records(known)
        print(f"{task.name}: {len(known)} measured again", file=sys.stderr, flush=True)
    return _with_records(replace(entry, task=task), known)


def _translated(entry: Entry, task: Task) -> list[tuple[Record, Candidate]]:
    """The records of the bank's task, and their candidates for `task`, the same on this CPU.

    TVM may list the sketches of another CPU in another order. Those for vectors of another width
    are left out.
    """
    from tlmd.space.sketches import instructions
    from tlmd.space.space import TaskSpace

    there, here = (
        [instructions(space.trace(sketch.index)) for sketch in space.sketches]
        for space in (TaskSpace(entry.task), TaskSpace(task))
    )
    indices = {index: here.index(text) for index, text in enumerate(there) if text in here}
    return [
        (record, replace(record.candidate, sketch=indices[record.candidate.sketch]))
        for record in entry.records
        if record.candidate.sketch in indices
    ]


def _with_records(entry: Entry, records: list[Record]) -> Entry:
    from tlmd.learn.feature_tables import FeatureTables
    from tlmd.space.cache import SpaceCache

    table = FeatureTables(SpaceCache()).table(entry.task, records)
    return replace(entry, records=records, table=table)


def _proposal(space: Any, record: Record) -> Proposal:
    trace = space.trace_json(record.candidate)
    return Proposal(record.candidate, trace, record.module_hash, record.version)


def _own(
    store: Any, measurer: Any, task: Task, checkpoint: Checkpoint, count: int, seed: int
) -> list[Record]:
    """What a job measures for the task."""
    known: list[Record] = store.records(task.id, task.target.fingerprint)
    if not known:
        known = searched(measurer, task, checkpoint, count, seed)
        store.add_records(known)
        print(f"{task.name}: {len(known)} of its own", file=sys.stderr, flush=True)
    return known


def _fine_tuned(
    shipped: Checkpoint, tasks: Sequence[Task], records: Sequence[Record], seed: int
) -> Checkpoint:
    """The next version, made as the trainer makes it, with nothing held out."""
    from tlmd.learn.demonstrations import read_replay
    from tlmd.learn.finetune import FineTuner

    tuner = FineTuner(shipped, seed=seed, held_out=0.0, replay=read_replay())
    tuner.add(tasks, records)
    found, made = tuner.train(1, lambda: False)
    print(f"fine-tuned: {made.steps} steps, {made.seconds:.0f} s", file=sys.stderr, flush=True)
    return found


def _orders(
    there: Sequence[Entry], here: Sequence[Entry], shipped: Checkpoint, tuned: Checkpoint
) -> list[report.Row]:
    """Rank correlations and first picks of both models, on both CPUs."""
    same = [_the_same(known, again) for known, again in zip(there, here, strict=True)]
    clocks = [
        spearman(1 / a.table.seconds, 1 / b.table.seconds) for a, b in zip(same, here, strict=True)
    ]
    rows = [
        {"judged": "the bank's CPU, shipped"} | _means(same, shipped),
        {"judged": "this CPU, shipped"} | _means(here, shipped),
    ]
    for name, part in (("learnt", here[::2]), ("other", here[1::2])):
        for version, checkpoint in (("shipped", shipped), ("fine-tuned", tuned)):
            row = {"judged": f"this CPU, {name} tasks, {version}"}
            rows.append(row | _means(part, checkpoint))
    clock = {"judged": "times of the one CPU by the other's"} | dict.fromkeys(_ORDERS, "")
    return [*rows, clock | {"cost model": mean_and_interval(clocks)}]


def _the_same(known: Entry, again: Entry) -> Entry:
    """The bank's task with those of its candidates only that were measured again."""
    by_id = {here.id: record for record, here in _translated(known, again.task)}
    return _with_records(known, [by_id[record.candidate.id] for record in again.records])


def _means(entries: Sequence[Entry], checkpoint: Checkpoint) -> dict[str, str]:
    rows = [bank_judge.rankings(entry, checkpoint) for entry in entries]
    return {figure: mean_and_interval([row[figure] for row in rows]) for figure in _ORDERS}


def _race(
    measurer: Any, task: Task, shipped: Checkpoint, tuned: Checkpoint, seed: int
) -> dict[int, float]:
    """Speed after over before, of the best of so many measurements."""
    arms = {"before": shipped, "after": tuned}
    runs = {name: searched(measurer, task, c, _COUNTS[-1], seed) for name, c in arms.items()}
    seconds = race(measurer, task, runs, _COUNTS)
    row = {k: seconds["before"][k] / seconds["after"][k] for k in _COUNTS}
    print(task.name, row, file=sys.stderr, flush=True)
    return row


def _gain(races: Sequence[Mapping[int, float]], count: int) -> report.Row:
    mean, low, high = geometric_mean_and_interval([row[count] for row in races])
    return {"best of": count, "mean": mean, "interval": [low, high]}


if __name__ == "__main__":
    sys.exit(main())
