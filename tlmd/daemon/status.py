"""What `tlmd status` says."""

from __future__ import annotations

import math
import time
from typing import Any

from tlmd import __version__
from tlmd.pipeline.jobs import Job
from tlmd.pipeline.loop import Pipeline
from tlmd.pipeline.orders import Kind, MeasureOrder, Worker
from tlmd.records.store import RecordStore


def snapshot(
    pipeline: Pipeline | None,
    jobs: list[dict[str, Any]],
    store: RecordStore,
    stopping: bool,
    begun: float,
) -> dict[str, Any]:
    """The document of ``tlmd status --json``; `begun` is seconds since the epoch."""
    counts = store.counts()
    document: dict[str, Any] = {
        "state": "stopping" if stopping else "idle",
        "batch": None,
        "version": 0,
        "lag": 0,
        "measured": counts.records,
        "failed": counts.failed,
        "rate_per_s": 0.0,
        "slots": [],
        "actors": [],
        "jobs": jobs,
        "convergence": None,
        "uptime_s": round(time.time() - begun, 1),
        "tlmd": __version__,
    }
    if pipeline is not None:
        document |= _working(pipeline, stopping)
    return document


def _working(pipeline: Pipeline, stopping: bool) -> dict[str, Any]:
    board, learning = pipeline.board, pipeline.learning
    workers = board.workers.values()
    last = learning.last
    return {
        "state": _state(pipeline, stopping),
        "batch": pipeline.generating.number - 1 if pipeline.generating.number else None,
        "version": learning.version,
        "lag": pipeline.measuring.lag,
        "over": round(pipeline.generating.over, 1),
        "rate_per_s": round(pipeline.measuring.rate, 3),
        "slots": [_slot(pipeline, w) for w in workers if w.kind is Kind.MEASURER],
        "actors": [_actor(pipeline, w) for w in workers],
        "convergence": _convergence(pipeline),
        "training": {
            "running": not learning.is_idle,
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
    orders = pipeline.board.busy.get(worker.name, [])
    target = worker.target
    return {
        "name": worker.name,
        "node": worker.node,
        "cores": list(worker.cores),
        "target": target.spec if target else None,
        "fingerprint": target.fingerprint if target else None,
        "in_flight": sum(len(o.proposals) for o in orders if isinstance(o, MeasureOrder)),
        "busy_s": round(pipeline.board.worked_s(worker.name), 2),
        "joined_s": round(pipeline.board.crew.now() - pipeline.board.joined[worker.name], 2),
    }


def _actor(pipeline: Pipeline, worker: Worker) -> dict[str, Any]:
    return {
        "name": worker.name,
        "kind": str(worker.kind),
        "node": worker.node,
        "pid": worker.pid,
        "version": worker.version if worker.kind is Kind.GENERATOR else None,
        "busy": bool(pipeline.board.busy.get(worker.name)),
    }


def _convergence(pipeline: Pipeline) -> dict[str, Any] | None:
    """Of the campaign, if one is running or was the last to run."""
    jobs: list[Job] = [job for job in pipeline.jobs.values() if job.corpus]
    if not jobs:
        return None
    verdict = pipeline.convergence.verdict(jobs[-1])
    gain = verdict.gain
    return {
        "measured": verdict.measured,
        "window": verdict.window,
        "gain": round(gain, 5) if gain is not None and math.isfinite(gain) else None,
        "limit": verdict.limit,
        "converged": verdict.converged,
    }
