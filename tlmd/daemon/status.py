"""The status document of a daemon, which `tlmd status` and the page show."""

from __future__ import annotations

import math
import time
from typing import Any

from tlmd.measure.cores.background import BackgroundWork
from tlmd.pipeline.loop import Pipeline
from tlmd.pipeline.orders import MeasureOrder, Worker, WorkerKind
from tlmd.pipeline.tuning_jobs import TuningJob
from tlmd.records.store import RecordStore
from tlmd.version import __version__


def snapshot(
    pipeline: Pipeline | None,
    jobs: list[dict[str, Any]],
    job_counts: dict[str, int],
    store: RecordStore,
    stopping: bool,
    started_at: float,
    run_cores: int,
    background: BackgroundWork,
) -> dict[str, Any]:
    """The document of ``tlmd status --json``. `started_at` is in monotonic seconds.

    `run_cores` is the number of cores that models are tuned for.
    """
    counts = store.counts()
    in_use = round(background.others.cores_in_use(), 1) if background.is_limited else None
    document: dict[str, Any] = {
        "state": "stopping" if stopping else "idle",
        "batch": None,
        "version": 0,
        "lag": 0,
        "measured": counts.records,
        "failed": counts.failed,
        "carried_over": counts.carried,
        "rate_per_s": 0.0,
        "run_cores": run_cores,
        "cores_of_others": in_use,  # None: this daemon does not wait for other programs
        "slots": [],
        "actors": [],
        "jobs": jobs,
        "job_counts": job_counts,
        "convergence": None,
        "uptime_s": round(time.monotonic() - started_at, 1),
        "tlmd": __version__,
    }
    if pipeline is not None:
        document |= _pipeline_status(pipeline, stopping)
    return document


def _pipeline_status(pipeline: Pipeline, stopping: bool) -> dict[str, Any]:
    pipeline_state, learning = pipeline.state, pipeline.learning
    workers = pipeline_state.workers.values()
    last = learning.last
    return {
        "state": _state(pipeline, stopping),
        "batch": pipeline.generating.number - 1 if pipeline.generating.number else None,
        "version": learning.version,
        "lag": pipeline.measuring.lag,
        "oversample": round(pipeline.generating.oversample, 1),
        "rate_per_s": round(pipeline.measuring.rate, 3),
        "slots": [_slot(pipeline, w) for w in workers if w.kind is WorkerKind.MEASURER],
        "actors": [_actor(pipeline, w) for w in workers],
        "candidates": {
            "queued": sum(batch.waiting for batch in pipeline_state.batches),
            "in_flight": sum(batch.in_flight for batch in pipeline_state.batches),
        },
        "convergence": _convergence(pipeline),
        "training": {
            "running": not learning.is_idle,
            "error": learning.trainer_error,
            "loss": round(last.loss, 4) if last and math.isfinite(last.loss) else None,
            "steps": last.steps if last else None,
        },
    }


def _state(pipeline: Pipeline, stopping: bool) -> str:
    if stopping:
        return "stopping"
    if pipeline.paused:
        return "paused"
    if not pipeline.is_idle:
        return "running"
    last = list(pipeline.jobs.values())[-1:]
    return "converged" if last and last[0].reason == "converged" else "idle"


def _slot(pipeline: Pipeline, worker: Worker) -> dict[str, Any]:
    orders = pipeline.state.orders.get(worker.name, [])
    target = worker.target
    return {
        "name": worker.name,
        "node": worker.node,
        "cores": list(worker.cores),
        "target": target.spec if target else None,
        "fingerprint": target.fingerprint if target else None,
        "in_flight": sum(len(o.inputs) for o in orders if isinstance(o, MeasureOrder)),
        "busy_s": round(pipeline.state.busy_s(worker.name), 2),
        "joined_s": round(pipeline.state.pool.now() - pipeline.state.joined_at[worker.name], 2),
    }


def _actor(pipeline: Pipeline, worker: Worker) -> dict[str, Any]:
    return {
        "name": worker.name,
        "kind": str(worker.kind),
        "node": worker.node,
        "pid": worker.pid,
        "version": worker.version if worker.kind is WorkerKind.GENERATOR else None,
        "busy": bool(pipeline.state.orders.get(worker.name)),
    }


def _convergence(pipeline: Pipeline) -> dict[str, Any] | None:
    """The convergence of the last campaign. None: the daemon had none."""
    jobs: list[TuningJob] = [job for job in pipeline.jobs.values() if job.convergence is not None]
    if not jobs or (convergence := jobs[-1].convergence) is None:
        return None
    status = convergence.status(jobs[-1])
    gain = status.gain
    return {
        "measured": status.measured,
        "window": status.window,
        "gain": round(gain, 5) if gain is not None and math.isfinite(gain) else None,
        "limit": status.limit,
        "converged": status.converged,
    }
