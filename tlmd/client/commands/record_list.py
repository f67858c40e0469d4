"""`tlmd records list`: the newest records of the store, with the ids that other commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tlmd.data.types import Record
from tlmd.data.units import microseconds
from tlmd.records.store import RecordStore

ID_DIGITS = 10  # of an id are shown; they are enough to tell records apart


def newest_records(state_dir: Path, count: int, failed: bool, task: str) -> list[dict[str, Any]]:
    """The `count` newest records, the newest first; only failures, or only of a task's name."""
    with RecordStore(state_dir / "records.sqlite", read_only=True) as store:
        names = {one.id: one.name for one in store.tasks()}
        wanted = {key for key, name in names.items() if name == task} if task else None
        records = store.newest_records(count, failed, wanted)
    return [_row(record, names.get(record.candidate.task_id, "?")) for record in records]


def text(rows: list[dict[str, Any]]) -> str:
    """The rows as a table for the terminal."""
    if not rows:
        return "no such records; `tlmd tune` measures some"
    lines = [
        f"{'record':<{ID_DIGITS}}  {'status':<13}  {'µs':>9}  {'batch':>5}  {'writer':<10}  task"
    ]
    for row in rows:
        micro = f"{row['us']:.1f}" if row["us"] is not None else ""
        detail = f": {row['detail']}" if row["detail"] else ""
        start = f"{row['id'][:ID_DIGITS]}  {row['status']:<13}  {micro:>9}  {row['batch']:>5}"
        start += f"  {row['writer']:<10}"
        lines.append(f"{start}  {row['task']}{detail}")
    return "\n".join(lines)


def _row(record: Record, task: str) -> dict[str, Any]:
    outcome = record.outcome
    return {
        "id": record.candidate.id,
        "task": task,
        "status": str(outcome.status),
        "us": microseconds(outcome.seconds),
        "verified": outcome.verified,
        "detail": outcome.detail,
        "writer": str(record.writer),
        "version": record.version,
        "batch": record.batch,
        "created": record.created,
    }
