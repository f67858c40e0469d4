"""`tlmd records`: import and export records as MetaSchedule databases and data set files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tlmd.corpus import known_programs
from tlmd.corpus.best_programs import best_programs
from tlmd.corpus.known_programs import KnownProgram
from tlmd.data.errors import BadInput
from tlmd.data.types import (
    Candidate,
    Outcome,
    Record,
    Status,
    TargetInfo,
    Task,
    Writer,
    content_hash,
)
from tlmd.lowering import identity, lowering
from tlmd.records import metaschedule_files
from tlmd.records.store import RecordStore
from tlmd.space.hardware import target as targets
from tlmd.space.importing import candidate_of
from tlmd.space.space import TaskSpace, module_hash

DATASET = (".msgpack", ".msgpack.gz", ".msgpack.xz")
"""Any other path is a directory with a MetaSchedule database."""
IMPORTED = -1  # version and batch of imported records
_SAME = ("kind", "mcpu", "mtriple", "arch", "num-cores")


def import_records(path: Path, target: str, cores: int, state_dir: Path) -> dict[str, int]:
    """Add the records of `path` to the store. Returns the counts of tasks, records and skipped.

    A file of known programs is added to those of the state directory.

    MetaSchedule records count as measured on this machine if their target is `target`. They are not
    verified, so tlmd exports an imported program only after it measured the program itself.
    """
    if known_programs.is_known_file(path):
        programs = known_programs.add(state_dir, path)
        return {"tasks": _tasks(programs), "records": len(programs), "skipped": 0}
    with RecordStore(state_dir / "records.sqlite") as store:
        if path.name.endswith(DATASET):
            counts = store.import_dataset(path)
            return {"tasks": counts.tasks, "records": counts.records, "skipped": 0}
        tasks, records, skipped = import_database(path, targets.resolve(target, cores))
        stored = {task.key for task in store.tasks()}
        store.add_tasks(task for task in tasks if task.key not in stored)
        store.add_records(
            r
            for r in records
            if not store.has_record(r.candidate.id, r.candidate.task_id, r.fingerprint)
        )
    return {"tasks": len(tasks), "records": len(records), "skipped": skipped}


def export_records(path: Path, state_dir: Path) -> dict[str, int]:
    """Write the store's best verified programs as a MetaSchedule database. Returns the counts.

    If `path` is a data set file, write all tasks and records of the store to it.
    """
    file = state_dir / "records.sqlite"
    with RecordStore(file, read_only=True) as store:
        if path.name.endswith(DATASET):
            counts = store.export_dataset(path)
            return {"tasks": counts.tasks, "records": counts.records}
        pairs = [(t, store.best(t.id, t.target.fingerprint)) for t in store.tasks()]
    best = [(task, record) for task, record in pairs if record is not None]
    if not best:
        raise BadInput(f"{file} has no verified program yet; `tlmd tune` measures some")
    export_database(path, best)
    return {"tasks": len(best), "records": len(best)}


def export_best(path: Path, state_dir: Path, least: int) -> dict[str, int]:
    """Write the best programs of tasks with `least` verified records as a file of known programs.

    Programs that were imported to the state directory are written, too, where the store has no
    better ones. Returns the counts; skipped are programs that this TVM makes otherwise.
    """
    with RecordStore(state_dir / "records.sqlite", read_only=True) as store:
        best, skipped = best_programs(store, least)
    own = state_dir / known_programs.FILE
    imported = known_programs.read(own) if own.exists() else ()
    merged = known_programs.KnownPrograms([best.all(), imported])
    if not merged.all():
        raise BadInput(
            f"no task in {state_dir} has {least} verified programs; `tlmd tune` measures some"
        )
    count = known_programs.write(path, merged)
    return {"tasks": _tasks(merged.all()), "records": count, "skipped": skipped}


def import_database(
    directory: Path, target_info: TargetInfo
) -> tuple[list[Task], list[Record], int]:
    """Read a MetaSchedule database: its tasks, its records and the number of skipped records.

    Skipped are records that fit no sketch of tlmd, and failed ones, because a program that failed
    elsewhere may work here. Raises `BadInput` for a damaged database.
    """
    spaces: dict[str, TaskSpace] = {}
    records: dict[tuple[str, str], Record] = {}
    skipped = 0
    for entry in metaschedule_files.read(directory):
        space = spaces.get(digest := module_hash(entry.module))
        if space is None:
            space = spaces[digest] = TaskSpace(_task(entry.module, target_info))
        usable = entry.seconds is not None and _fits(entry.target, target_info)
        candidate = candidate_of(space, entry.trace) if usable else None
        if candidate is None:
            skipped += 1
            continue
        record = _record(candidate, entry, space, target_info)
        key = candidate.id, record.fingerprint
        if key not in records or record.outcome.seconds < records[key].outcome.seconds:
            records[key] = record
    used = {record.candidate.task_id for record in records.values()}
    tasks = {s.task.id: s.task for s in spaces.values() if s.task.id in used}
    return list(tasks.values()), list(records.values()), skipped


def export_database(directory: Path, best: Iterable[tuple[Task, Record]]) -> None:
    """Write programs as a MetaSchedule database that any TVM program can apply."""
    try:
        database = metaschedule_files.create(directory)
    except OSError as error:
        raise BadInput(
            f"cannot write to {directory}: {error.strerror}; choose another folder"
        ) from error
    for task, record in best:
        trace = TaskSpace(task).trace_json(record.candidate)
        target = targets.tvm_target(task.target)
        metaschedule_files.commit(database, task, trace, record.outcome.seconds, target)
    metaschedule_files.check_written(directory)


def _tasks(programs: Iterable[KnownProgram]) -> int:
    return len({(program.target, program.candidate.task_id) for program in programs})


def _task(module: Any, target_info: TargetInfo) -> Task:
    key = identity.task_id(module)
    normal = lowering.tuning_module(module["main"])
    return lowering.as_task(key, normal, f"imported_{key[2:10]}", 1, target_info)


def _fits(target: Any, info: TargetInfo) -> bool:
    """Whether the record's target is of the kind of `info`, so that it can fit its sketches."""
    return target is None or str(target.kind.name) == json.loads(info.spec).get("kind")


def _record(candidate: Candidate, entry: Any, space: TaskSpace, info: TargetInfo) -> Record:
    return Record(
        candidate,
        Outcome(Status.OK, (entry.seconds,)),
        version=IMPORTED,
        batch=IMPORTED,
        fingerprint=_machine(entry.target, info),
        module_hash=module_hash(space.finish(candidate).mod),
        writer=Writer.IMPORT,
    )


def _machine(target: Any, info: TargetInfo) -> str:
    """The fingerprint of `info`. If the record names another target, another fingerprint."""
    if target is None:
        return info.fingerprint
    theirs, ours = json.loads(str(target)), json.loads(info.spec)
    if all(theirs.get(key) in (None, "", ours.get(key)) for key in _SAME):
        return info.fingerprint
    return content_hash({key: str(theirs.get(key)) for key in _SAME})[:16]
