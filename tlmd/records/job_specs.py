"""Jobs in the record store: the specification and the state of each job."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tlmd.data import wire
from tlmd.data.errors import BadInput, in_one_line
from tlmd.data.model_spec import FP32, ModelSpec, Shapes
from tlmd.data.types import JobState
from tlmd.records.job_table import JobRow, JobTable


@dataclass(frozen=True)
class JobSpec:
    """The specification of a job.

    Example: ``JobSpec("resnet18-3fa1", "resnet18", None, "native", 16, None, "", False, "/home")``.
    """

    id: str
    model: str
    input_shapes: Shapes | None
    target: str

    trials: int
    """Measurements per task. 0: no limit."""

    time_budget: float | None
    """Seconds for measuring. None: no limit."""

    corpus: str
    """``paper`` or a file of tasks. Empty: the job tunes `model`."""

    until_converged: bool

    cwd: str
    """The user's working directory, from which a model's factory is imported."""

    tasks: str = ""
    """The file with the tasks of the job. Empty: the model is not lowered yet."""

    created: float = 0.0
    """Seconds since the epoch."""

    reason: str = ""
    """Why the job failed or was cancelled, in one line."""

    ended: float = 0.0
    """Seconds since the epoch. 0: the job has not ended."""

    model_task: str = ""
    """`ModelSpec.task`."""

    weights: str = ""
    """`ModelSpec.weights`."""

    strict_numerics: bool = False
    """`ModelSpec.strict_numerics`."""

    spent_s: float = 0.0
    """Seconds of `time_budget` that are over."""

    progress: dict[str, Any] = field(default_factory=dict)
    """How far the job was when it ended (`pipeline.tuning_jobs.Progress`)."""

    priority: int = 0
    """`TuneConfig.priority`."""

    weight: float = 1.0
    """`TuneConfig.weight`."""

    wait_for_hardware: bool = False
    """It is not refused where no slot has its hardware."""

    precision: str = FP32
    """`ModelSpec.precision`."""

    @property
    def model_spec(self) -> ModelSpec:
        """The model with everything that loading it depends on."""
        return ModelSpec(
            self.model,
            self.input_shapes,
            self.model_task,
            self.weights,
            self.strict_numerics,
            self.precision,
        )

    @property
    def title(self) -> str:
        return self.model or f"corpus {self.corpus}"


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
        return wire.unpack(JobSpec, row.payload), JobState(row.state)
    except ValueError as error:  # a `WireError` is one
        raise BadInput(
            f"job {row.id} in the record store is damaged ({in_one_line(error)}); "
            "restore a copy of the store"
        ) from error
