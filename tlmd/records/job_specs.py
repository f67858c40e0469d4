"""Jobs in the record store: the specification and the state of each job."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from tlmd import wire
from tlmd.model_spec import ModelSpec, Shapes
from tlmd.records.store import RecordStore
from tlmd.types import JobState


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

    @property
    def model_spec(self) -> ModelSpec:
        """The model with everything that loading it depends on."""
        return ModelSpec(
            self.model,
            self.input_shapes,
            self.model_task,
            self.weights,
            self.strict_numerics,
        )

    @property
    def title(self) -> str:
        return self.model or f"corpus {self.corpus}"


def save(store: RecordStore, spec: JobSpec, state: JobState) -> None:
    """Store a job and its state."""
    store.put_job(spec.id, str(state), wire.pack(spec))


def stored(store: RecordStore) -> list[tuple[JobSpec, JobState]]:
    """All stored jobs with their states, oldest first."""
    return [(wire.unpack(JobSpec, row.payload), JobState(row.state)) for row in store.jobs()]


def ended(spec: JobSpec, reason: str = "") -> JobSpec:
    """The specification of a job that ends now, with the `reason`."""
    return replace(spec, reason=reason, ended=time.time())
