"""Conversions of jobs: from an HTTP request to a `JobSpec`, and to the documents that are shown."""

from __future__ import annotations

import math
import re
import secrets
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tlmd.data import config, wire
from tlmd.data.errors import BadInput
from tlmd.data.model_spec import FP32, Shapes
from tlmd.data.types import JobState
from tlmd.data.units import microseconds
from tlmd.pipeline.task_groups import TaskGroup
from tlmd.pipeline.tuning_jobs import TuningJob
from tlmd.records.job_specs import JobSpec

_OF_THE_DAEMON = {"id", "created", "reason", "ended", "spent_s", "progress"}  # not of a request
_MOST_TRIALS, _LONGEST_S, _LARGEST_SIZE = 10**9, 1e9, 2**31
_NOT_OF_A_NAME = re.compile(r"[^\w.+-]+")  # an id is also the name of a file
_CURVE = 200  # points of a task's curve in a document, about


def make_spec(request: dict[str, Any]) -> JobSpec:
    """Check a request that came over HTTP. Raises `BadInput` with the field that is wrong."""
    known = set(JobSpec.__dataclass_fields__) - _OF_THE_DAEMON
    if unknown := set(request) - known:
        raise BadInput(
            f"unknown field {_shown(min(unknown))} of a job; known: {', '.join(sorted(known))}"
        )
    model, corpus = str(request.get("model") or ""), str(request.get("corpus") or "")
    if bool(model) == bool(corpus):
        raise BadInput("a job needs either a model or a corpus")
    trials = request.get("trials", 0 if corpus else 16)
    budget = request.get("time_budget")
    if type(trials) is not int or not (0 if corpus else 1) <= trials <= _MOST_TRIALS:
        raise BadInput(f"trials must be a number of at least 1, not {_shown(trials)}")
    if budget is not None and (type(budget) not in (int, float) or not 0 < budget <= _LONGEST_S):
        raise BadInput(f"time_budget must be a number of seconds, not {_shown(budget)}")
    settings = {key: request[key] for key in ("priority", "weight") if request.get(key) is not None}
    shares = config.load(None, {f"tune.{key}": value for key, value in settings.items()}, {}).tune
    name = _NOT_OF_A_NAME.sub("-", Path(model.replace(":", "-") or corpus).stem)[:40]
    spec = JobSpec(
        f"{name}-{secrets.token_hex(4)}",
        model,
        input_shapes=_shapes(request.get("input_shapes")),
        target=str(request.get("target") or "native"),
        trials=trials,
        time_budget=float(budget) if budget is not None else None,
        corpus=corpus,
        until_converged=bool(request.get("until_converged", False)),
        cwd=str(request.get("cwd") or "/"),
        tasks=str(request.get("tasks") or ""),
        created=time.time(),
        model_task=str(request.get("model_task") or ""),
        weights=str(request.get("weights") or ""),
        strict_numerics=bool(request.get("strict_numerics", False)),
        priority=shares.priority,
        weight=shares.weight,
        wait_for_hardware=bool(request.get("wait_for_hardware", False)),
        precision=str(request.get("precision") or FP32),
    )
    _ = spec.model_spec  # checks what depends on each other
    try:
        wire.pack(spec)
    except UnicodeEncodeError:
        raise BadInput("a job has a text that is not UTF-8") from None
    return spec


def _shown(value: Any) -> str:
    return ascii(value)[:100]


def _shapes(given: Any) -> Shapes | None:
    if given is None:
        return None
    try:
        shapes = tuple(tuple(int(n) for n in shape) for shape in given)
    except (TypeError, ValueError, OverflowError):
        shapes = ()
    fits = all(shape and min(shape) >= 1 and max(shape) <= _LARGEST_SIZE for shape in shapes)
    if not shapes or not fits:
        raise BadInput(f"input_shapes must be a list of shapes, not {_shown(given)}")
    return shapes


def to_job(spec: JobSpec) -> TuningJob:
    """Convert a specification to the job that the pipeline runs."""
    return TuningJob(
        spec.id,
        spec.trials,
        corpus=bool(spec.corpus),
        until_converged=spec.until_converged,
        budget_s=spec.time_budget,
        all_tasks_known=False,
        priority=spec.priority,
        weight=spec.weight,
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
        "trials": spec.trials,
        "priority": spec.priority,
        "weight": spec.weight,
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
