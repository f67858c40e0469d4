"""A pipeline on simulated workers, and what happened in it."""

from __future__ import annotations

from typing import Any

from tests.support.simulated import MemoryStore, SimulatedWorkerPool, task
from tlmd.data.types import Status
from tlmd.pipeline.loop import Pipeline
from tlmd.pipeline.state import PipelineOptions
from tlmd.pipeline.tuning_jobs import TuningJob

SIZES = {"a": 60, "b": 60, "c": 60}


class Run:
    """A pipeline, its workers and the trace of what happened."""

    def __init__(
        self,
        options: PipelineOptions,
        pool: SimulatedWorkerPool | None = None,
        store: MemoryStore | None = None,
    ) -> None:
        self.pool = pool or SimulatedWorkerPool(SIZES)
        self.store = store or MemoryStore()
        self.trace: list[dict[str, Any]] = []
        self.pipeline = Pipeline(self.pool, self.store, options, self._emit)

    def _emit(self, kind: str, **facts: Any) -> None:
        self.trace.append({"kind": kind, "time": self.pool.now(), **facts})

    def add(self, job: TuningJob, *tasks: str, weight: int = 1) -> TuningJob:
        found = [task(name, weight) for name in tasks or SIZES]
        self.store.known += found
        self.pipeline.add_job(job, found)
        return job

    def until_idle(self, steps: int = 20_000) -> None:
        for _ in range(steps):
            self.pipeline.step(1.0)
            if self.pipeline.is_idle:
                return
        raise AssertionError(f"not idle: {self.trace[-5:]}")

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.trace if e["kind"] == kind]

    def measured(self) -> list[str]:
        """Without the comparisons, which time candidates again."""
        rows = [r for r in self.store.rows if r.outcome.status is not Status.INVALID]
        return [r.candidate.id for r in rows if not r.outcome.compared]
