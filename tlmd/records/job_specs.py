"""Jobs in the record store: the specification and the state of each job."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tlmd.data import wire
from tlmd.data.errors import BadInput, in_one_line
from tlmd.data.job_request import JobRequest
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import JobState
from tlmd.records.job_table import JobRow, JobTable

# The fields of a stored job in their order until 0.1, when a job was stored as one list.
_OLD_FIELDS = (
    *("id", "model", "input_shapes", "target", "trials", "time_budget", "corpus"),
    *("until_converged", "cwd", "tasks", "created", "reason", "ended", "model_task", "weights"),
    *("strict_numerics", "spent_s", "progress", "priority", "weight", "wait_for_hardware"),
    "precision",
)


@dataclass(frozen=True)
class JobSpec:
    """A job in the store: what the user said of it, and what became of it.

    Example: ``JobSpec("resnet18-3fa1", JobRequest("resnet18"))``.
    """

    id: str

    request: JobRequest
    """Its numbers are filled in (`JobRequest.with_defaults`)."""

    tasks: str = ""
    """The file with the tasks of the job. Empty: the model is not lowered yet."""

    created: float = 0.0
    """Seconds since the epoch."""

    reason: str = ""
    """Why the job failed or was cancelled, in one line."""

    ended: float = 0.0
    """Seconds since the epoch. 0: the job has not ended."""

    spent_s: float = 0.0
    """Seconds of `JobRequest.time_budget` that are over."""

    progress: dict[str, Any] = field(default_factory=dict)
    """How far the job was when it ended (`pipeline.tuning_jobs.Progress`)."""

    @property
    def model_spec(self) -> ModelSpec:
        """The model with everything that loading it depends on."""
        return self.request.model_spec

    @property
    def title(self) -> str:
        return self.request.name or f"corpus {self.request.corpus}"


def save(store: JobTable, spec: JobSpec, state: JobState) -> None:
    """Store a job and its state."""
    store.put_job(spec.id, str(state), wire.pack(spec))


def unfinished(store: JobTable) -> list[tuple[JobSpec, JobState]]:
    """The stored jobs that have not ended, with their states, oldest first."""
    open_states = [state for state in JobState if not state.is_finished]
    return [_read(row) for row in store.jobs(open_states)]


def newest(store: JobTable, count: int, before: str = "") -> list[tuple[JobSpec, JobState]]:
    """The newest jobs, or the newest before the job with that id; the oldest of them first.

    Raises `BadInput` if there is no such job.
    """
    if before and store.job(before) is None:
        raise BadInput(f"no job {before!r}; `tlmd jobs` lists them")
    return [_read(row) for row in store.newest_jobs(count, before)]


def find(store: JobTable, job_id: str) -> tuple[JobSpec, JobState] | None:
    """The job with this id and its state, or None."""
    row = store.job(job_id)
    return _read(row) if row is not None else None


def remove_oldest(store: JobTable, keep: int) -> list[JobSpec]:
    """Remove all finished jobs but the newest `keep`; the removed ones."""
    finished = [state for state in JobState if state.is_finished]
    return [_read(row)[0] for row in store.remove_jobs(finished, keep)]


def tasks_file(spec: JobSpec, state_dir: Path) -> Path | None:
    """The file with the job's tasks; None: the model is not lowered yet.

    A state directory may have moved since, with the files of its jobs.
    """
    if not spec.tasks:
        return None
    here = state_dir / "jobs" / Path(spec.tasks).name
    return here if here.exists() else Path(spec.tasks)


def ended(spec: JobSpec, reason: str = "") -> JobSpec:
    """The specification of a job that ends now, with the `reason`."""
    return replace(spec, reason=reason, ended=time.time())


def _read(row: JobRow) -> tuple[JobSpec, JobState]:
    try:
        return _unpacked(row.payload), JobState(row.state)
    except (ValueError, BadInput) as error:  # a `WireError` is a ValueError
        raise BadInput(
            f"job {row.id} in the record store is damaged ({in_one_line(error)}); "
            "restore a copy of the store"
        ) from error


def _unpacked(payload: bytes) -> JobSpec:
    match wire.head(payload, 2):
        case [_, str()]:  # the second field was the model's name until 0.1
            values = dict(zip(_OLD_FIELDS, wire.head(payload, len(_OLD_FIELDS)), strict=False))
            kept = {f.name: values.pop(f.name) for f in fields(JobSpec) if f.name in values}
            return JobSpec(request=JobRequest(**values), **kept)
    return wire.unpack(JobSpec, payload)
