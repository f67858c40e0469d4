"""Makes a record store smaller: what no decision depends on any more is removed.

Of each task on each kind of machine stay, of the newest measurement of each candidate: every winner
and loser of a finalist comparison, the fastest verified programs, and the newest of all, failures
included. The best program of a task stays the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tlmd.data.types import Task
from tlmd.records import job_specs
from tlmd.records.job_table import JobTable
from tlmd.records.task_file import load_tasks

_PORTION = 500  # rows that are removed in one statement


@dataclass(frozen=True, slots=True)
class StoredRow:
    """Properties that decide whether a record stays. ``seconds`` is None if it was not verified.

    Example: ``StoredRow(7, b"...", 1.7e9, compared=False, seconds=0.001)``.
    """

    row: int
    candidate: bytes
    created: float
    compared: bool
    seconds: float | None


class RecordCompaction(JobTable):
    """The part of the record store that removes records. Thread-safe."""

    def compact(self, keep: int, untouched: Collection[tuple[str, str]] = ()) -> int:
        """Keep `keep` fast and `keep` new records of each task; how many others were removed.

        Tasks in `untouched` (``Task.key``) stay as they are. A transaction for each task, so that
        it may be interrupted. The file keeps its size until `shrink`.
        """
        keys = self._read("SELECT key, task_id, fingerprint FROM task_keys", (), int, str, str)
        skipped = set(untouched)
        return sum(
            self._compact_task(key, keep) for key, *task in keys if tuple(task) not in skipped
        )

    def shrink(self) -> None:
        """Give the space of removed records back to the disk; for a while it needs the same again.

        Raises `Failed` where the disk has no room for that.
        """
        with self._mutex, self._errors():
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _compact_task(self, key: int, keep: int) -> int:
        query = (
            "SELECT row, candidate, created, compared, CASE WHEN verified THEN seconds END"
            " FROM records WHERE task = ?"
        )
        with self._transaction():
            rows = [StoredRow(*values) for values in self._read(query, (key,))]
            removed = superfluous(rows, keep)
            for start in range(0, len(removed), _PORTION):
                portion = removed[start : start + _PORTION]
                self._write_many("DELETE FROM records WHERE row = ?", [(row,) for row in portion])
        return len(removed)


def superfluous(rows: Sequence[StoredRow], keep: int) -> list[int]:
    """The rows of one task that may go."""
    newest: dict[bytes, StoredRow] = {}
    for one in sorted(rows, key=lambda one: (one.created, one.row)):
        newest[one.candidate] = one
    ordered = list(newest.values())
    ordered.sort(key=lambda one: (one.created, one.row), reverse=True)
    timed = [one for one in ordered if one.seconds is not None]
    timed.sort(key=lambda one: (one.seconds, one.created, one.row))
    kept = {one.row for one in (*ordered[:keep], *timed[:keep])}
    kept |= {one.row for one in timed if one.compared}
    return sorted(one.row for one in rows if one.row not in kept)


def tasks_of_unfinished_jobs(store: JobTable, state_dir: Path) -> set[tuple[str, str]]:
    """The keys of tasks whose records an unfinished job counts. Raises `BadInput` for damage."""
    tasks: list[Task] = []
    for spec, _ in job_specs.unfinished(store):
        path = job_specs.tasks_file(spec, state_dir)
        if path is not None and path.exists():
            tasks += load_tasks(path)
    return {task.key for task in tasks}
