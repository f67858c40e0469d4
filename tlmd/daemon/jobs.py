"""Jobs as the daemon keeps them: what was asked for, where it stands, what others may know."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tlmd import wire
from tlmd.daemon.summary import micro
from tlmd.errors import BadInput
from tlmd.pipeline.jobs import Job, JobState, TaskState
from tlmd.records.store import RecordStore
from tlmd.types import Shapes

_CURVE = 200  # points of a task's curve that are sent


@dataclass(frozen=True)
class JobSpec:
    """What was asked for; seconds and measurements per task.

    ``corpus`` is '' for a user's model, else 'paper' or a file of tasks. ``tasks`` is the file its
    tasks are in once they are known, ``cwd`` where the model's name holds.

    Example: ``JobSpec("resnet18-3fa1", "resnet18", None, "native", 16, None, "", False, "/home")``.
    """

    id: str
    model: str
    input_shapes: Shapes | None
    target: str
    trials: int
    time_budget: float | None
    corpus: str
    until_converged: bool
    cwd: str
    tasks: str = ""
    created: float = 0.0
    reason: str = ""
    ended: float = 0.0

    @property
    def title(self) -> str:
        return self.model or f"corpus {self.corpus}"


def make_spec(request: dict[str, Any]) -> JobSpec:
    """Check what came over HTTP; raises `BadInput` with the field that is wrong."""
    known = set(JobSpec.__dataclass_fields__) - {"id", "created", "reason", "ended"}
    if unknown := set(request) - known:
        raise BadInput(
            f"unknown field {min(unknown)!r} of a job; known: {', '.join(sorted(known))}"
        )
    model, corpus = str(request.get("model") or ""), str(request.get("corpus") or "")
    if bool(model) == bool(corpus):
        raise BadInput("a job needs either a model or a corpus")
    trials = request.get("trials", 0 if corpus else 16)
    budget = request.get("time_budget")
    if not isinstance(trials, int) or trials < (0 if corpus else 1):
        raise BadInput(f"trials must be a number of at least 1, not {trials!r}")
    if budget is not None and (not isinstance(budget, int | float) or budget <= 0):
        raise BadInput(f"time_budget must be a number of seconds, not {budget!r}")
    name = Path(model.replace(":", "-") or corpus).stem[:40]
    return JobSpec(
        f"{name}-{secrets.token_hex(2)}",
        model,
        _shapes(request.get("input_shapes")),
        str(request.get("target") or "native"),
        trials,
        float(budget) if budget is not None else None,
        corpus,
        bool(request.get("until_converged", False)),
        str(request.get("cwd") or "/"),
        str(request.get("tasks") or ""),
        time.time(),
    )


def _shapes(given: Any) -> Shapes | None:
    if given is None:
        return None
    try:
        shapes = tuple(tuple(int(n) for n in shape) for shape in given)
    except (TypeError, ValueError):
        shapes = ()
    if not shapes or any(not shape or min(shape) < 1 for shape in shapes):
        raise BadInput(f"input_shapes must be a list of shapes, not {given!r}")
    return shapes


def to_job(spec: JobSpec) -> Job:
    """The job as the pipeline runs it."""
    return Job(
        spec.id,
        spec.trials,
        corpus=bool(spec.corpus),
        until_converged=spec.until_converged,
        budget_s=spec.time_budget,
        whole=False,
    )


def save(store: RecordStore, spec: JobSpec, state: JobState) -> None:
    """Keep a job and its state."""
    store.put_job(spec.id, str(state), wire.pack(spec))


def stored(store: RecordStore) -> list[tuple[JobSpec, JobState]]:
    """All jobs there ever were, in the order they came."""
    return [(wire.unpack(JobSpec, row.payload), JobState(row.state)) for row in store.jobs()]


def ended(spec: JobSpec, reason: str = "") -> JobSpec:
    """The job as it is kept when it is over."""
    return replace(spec, reason=reason, ended=time.time())


def summary(spec: JobSpec, state: JobState, job: Job | None, now: float) -> dict[str, Any]:
    """What `tlmd jobs` and the page show."""
    document: dict[str, Any] = {
        "id": spec.id,
        "model": spec.title,
        "state": str(state),
        "reason": spec.reason,
        "trials": spec.trials,
        "created": spec.created,
    }
    if job is not None:
        document["progress"] = asdict(job.progress(now))
        document["reason"] = spec.reason or job.reason
    return document


def detail(spec: JobSpec, state: JobState, job: Job | None, now: float) -> dict[str, Any]:
    """The same with every task: untuned and best µs, trials, and the curve of the best."""
    document = summary(spec, state, job, now)
    tasks = [] if job is None else [_task(s, job.weight(s)) for s in job.tasks]
    return document | {"tasks": tasks}


def _task(state: TaskState, weight: int) -> dict[str, Any]:
    curve: list[float] = []
    best = math.inf
    for record in state.own:
        if record.outcome.verified:
            best = min(best, record.outcome.seconds)
        curve.append(best)
    finite = [(i + 1, round(s * 1e6, 3)) for i, s in enumerate(curve) if math.isfinite(s)]
    step = max(1, len(finite) // _CURVE)
    shown = finite[::step]
    if finite and shown[-1] != finite[-1]:
        shown.append(finite[-1])
    return {
        "id": state.task.id,
        "name": state.task.name,
        "weight": weight,
        "trials": state.trials,
        "untuned_us": micro(state.baseline.seconds if state.baseline else math.inf),
        "best_us": micro(state.best_seconds),
        "version": state.best.version if state.best else None,
        "curve": shown,
    }
