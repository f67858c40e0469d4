"""Conversions of jobs: from an HTTP request to a `JobSpec`, and to the documents that are shown."""

from __future__ import annotations

import math
import re
import secrets
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tlmd.data.config import TuneConfig
from tlmd.data.errors import BadInput
from tlmd.data.job_request import JobRequest
from tlmd.data.types import JobState
from tlmd.data.units import microseconds
from tlmd.pipeline.task_groups import TaskGroup
from tlmd.pipeline.tuning_jobs import TuningJob
from tlmd.records.job_specs import JobSpec

_NOT_OF_A_NAME = re.compile(r"[^\w.+-]+")  # an id is also the name of a file
_CURVE = 200  # points of a task's curve in a document, about


def make_spec(document: dict[str, Any]) -> JobSpec:
    """The job that the body of a request describes. Raises `BadInput` with the wrong field."""
    request = JobRequest.model_validate(document).with_defaults(TuneConfig())
    if request.trials == 0 and not request.corpus:
        raise BadInput(
            "trials must be at least 1; `tlmd compile` measures nothing and needs no job"
        )
    title = request.name.replace(":", "-") or request.corpus
    name = _NOT_OF_A_NAME.sub("-", Path(title).stem)[:40]
    return JobSpec(
        f"{name}-{secrets.token_hex(4)}", request, tasks=request.tasks, created=time.time()
    )


def to_job(spec: JobSpec) -> TuningJob:
    """Convert a specification to the job that the pipeline runs."""
    request = spec.request
    return TuningJob(
        spec.id,
        request.trials or 0,
        corpus=bool(request.corpus),
        until_converged=request.until_converged,
        budget_s=request.time_budget,
        all_tasks_known=False,
        priority=request.priority or 0,
        weight=request.weight or 1.0,
        created=spec.created,
        spent_s=spec.spent_s,
    )


def summary(spec: JobSpec, state: JobState, job: TuningJob | None, now: float) -> dict[str, Any]:
    """The summary of a job that `tlmd jobs` and the page show. `now` is monotonic seconds."""
    document: dict[str, Any] = {
        "id": spec.id,
        "model": spec.title,
        "state": str(state),
        "reason": spec.reason,
        "trials": spec.request.trials,
        "priority": spec.request.priority,
        "weight": spec.request.weight,
        "created": spec.created,
    }
    if spec.progress:
        document["progress"] = spec.progress
    elif job is not None:
        document["progress"] = asdict(job.progress(now))
        document["reason"] = spec.reason or job.reason
    return document


def detail(spec: JobSpec, state: JobState, job: TuningJob | None, now: float) -> dict[str, Any]:
    """The summary and all tasks, each with untuned and best µs, trials and curve.

    The curve is a list of ``(number of measurements, best µs so far)``.
    """
    document = summary(spec, state, job, now)
    return document | {"tasks": [] if job is None else task_documents(job)}


def with_progress(spec: JobSpec, job: TuningJob, now: float) -> JobSpec:
    """The specification of a job that has ended, with how far it was."""
    return replace(spec, progress=asdict(job.progress(now)), reason=spec.reason or job.reason)


def task_documents(job: TuningJob) -> list[dict[str, Any]]:
    """All tasks of a job, each with untuned and best µs, trials and curve."""
    return [_task(group) for group in job.groups]


def _task(group: TaskGroup) -> dict[str, Any]:
    curve: list[float] = []
    best = math.inf
    records = (record for task in group.members for record in task.own)
    for record in sorted(records, key=lambda r: r.created):
        if record.outcome.verified:
            best = min(best, record.outcome.seconds)
        curve.append(best)
    finite = [(i + 1, round(s * 1e6, 3)) for i, s in enumerate(curve) if math.isfinite(s)]
    step = max(1, len(finite) // _CURVE)
    shown = finite[::step]
    if finite and shown[-1] != finite[-1]:
        shown.append(finite[-1])
    task = group.best
    return {
        "id": group.computation,
        "name": task.task.name,
        "weight": group.weight,
        "trials": group.trials,
        "untuned_us": microseconds(group.baseline_s),
        "best_us": microseconds(task.best_seconds),
        "version": task.best.version if task.best else None,
        "curve": shown,
    }
