"""Jobs in the database, as rows that are found by their ids, states and order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tlmd.records.database import Database


@dataclass(frozen=True, slots=True)
class JobRow:
    """A stored job. The payload is msgpack; the caller of `put_job` encodes it.

    Example: ``JobRow("j1", "running", b"...")``.
    """

    id: str
    state: str
    payload: bytes


_ROW = (str, str, bytes)


class JobTable(Database):
    """The table of the jobs. Thread-safe; the errors are those of `Database`."""

    def put_job(self, job_id: str, state: str, payload: bytes) -> None:
        """Store a job, or its new state. The caller encodes the payload with `wire.pack`."""
        self._write_many(
            "INSERT INTO jobs (id, state, payload) VALUES (?, ?, ?) ON CONFLICT (id)"
            " DO UPDATE SET state = excluded.state, payload = excluded.payload",
            [(job_id, state, payload)],
        )

    def job(self, job_id: str) -> JobRow | None:
        """The job with this id, or None."""
        rows = self._read("SELECT id, state, payload FROM jobs WHERE id = ?", (job_id,), *_ROW)
        return JobRow(*rows[0]) if rows else None

    def jobs(self, states: Collection[str]) -> list[JobRow]:
        """The jobs in these states, in the order in which they were added."""
        marks = ", ".join("?" * len(states))
        query = f"SELECT id, state, payload FROM jobs WHERE state IN ({marks}) ORDER BY row"
        return [JobRow(*row) for row in self._read(query, tuple(states), *_ROW)]

    def job_counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        query = "SELECT state, COUNT(*) FROM jobs GROUP BY state"
        return dict(self._read(query, (), str, int))

    def newest_jobs(self, count: int, before: str = "") -> list[JobRow]:
        """The newest jobs, or the newest before the job with that id; the oldest of them first."""
        older = "WHERE row < (SELECT row FROM jobs WHERE id = ?)" if before else ""
        query = f"SELECT id, state, payload FROM jobs {older} ORDER BY row DESC LIMIT ?"
        rows = self._read(query, (before, count) if before else (count,), *_ROW)
        return [JobRow(*row) for row in reversed(rows)]

    def remove_jobs(self, states: Collection[str], keep: int) -> list[JobRow]:
        """Remove all jobs in these states but the newest `keep`; the removed ones."""
        marks = ", ".join("?" * len(states))
        chosen = (
            f"SELECT row FROM jobs WHERE state IN ({marks}) ORDER BY row DESC LIMIT -1 OFFSET ?"
        )
        values = (*states, keep)
        with self._transaction():
            query = f"SELECT id, state, payload FROM jobs WHERE row IN ({chosen})"
            removed = [JobRow(*row) for row in self._read(query, values, *_ROW)]
            if removed:
                self._write_many("DELETE FROM jobs WHERE id = ?", [(job.id,) for job in removed])
        return removed
