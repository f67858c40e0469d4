"""Makes known programs from the records of a store: the best of each task, checked by TVM."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tlmd.corpus.known_programs import KnownProgram, KnownPrograms
from tlmd.data.selection import fastest, leading
from tlmd.data.types import Record, Task
from tlmd.records.store import RecordStore
from tlmd.space.space import TaskSpace

_KEPT = 3  # of each task: where TVM refuses the best one, the next is taken
_TRIED = 8


def best_programs(store: RecordStore, least: int = 1) -> tuple[KnownPrograms, int]:
    """The best programs of the tasks with at least `least` verified records.

    The second value is the number of programs left out, because this TVM makes other programs from
    their records. Of a task on several machines with the same target, those of the machine with the
    most records count. Programs slower than TVM's default schedule are left out.
    """
    chosen: dict[tuple[str, str], tuple[int, Task, list[Record]]] = {}
    for task in store.tasks():
        records = [r for r in store.records(*task.key) if r.outcome.verified]
        key, count = (task.target.spec, task.id), len(records)
        if count >= least and (key not in chosen or count > chosen[key][0]):
            baseline = store.baseline(*task.key)
            limit = baseline.seconds if baseline else math.inf
            chosen[key] = count, task, _ordered(records, limit)
    found, left_out = list[KnownProgram](), 0
    for _, task, records in chosen.values():
        kept, changed = _checked(task, records)
        found += kept
        left_out += changed
    return KnownPrograms([found]), left_out


def _ordered(records: Iterable[Record], limit: float) -> list[Record]:
    """The best records, the best first."""
    records = [record for record in records if record.outcome.seconds < limit]
    best = fastest(records)
    others = [record for record in leading(records, _TRIED) if record is not best]
    return [best, *others] if best else []


def _checked(task: Task, records: Iterable[Record]) -> tuple[list[KnownProgram], int]:
    """The first programs that TVM makes as they were measured, and the number of the others."""
    kept, changed = list[KnownProgram](), 0
    space: TaskSpace | None = None
    for record in records:
        space = space or TaskSpace(task)
        program = KnownProgram(
            task.target.spec,
            task.name,
            record.candidate,
            record.module_hash,
            record.outcome.seconds,
        )
        if space.makes(program.candidate, program.module_hash):
            kept.append(program)
        else:
            changed += 1
        if len(kept) == _KEPT:
            break
    return kept, changed
