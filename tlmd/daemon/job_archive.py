"""Stored jobs: pages of their summaries, what is known of a finished one, removal of the oldest."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tlmd.daemon import job_documents as job_views
from tlmd.data.errors import BadInput
from tlmd.data.types import JobState
from tlmd.pipeline.task_state import TaskState
from tlmd.pipeline.tuning_jobs import TuningJob
from tlmd.records import job_specs
from tlmd.records.job_specs import JobSpec
from tlmd.records.store import RecordStore
from tlmd.records.task_file import load_tasks


class JobArchive:
    """The jobs in the store of one state directory. Thread-safe.

    Of the finished ones the newest `keep` are kept; 0: all.
    """

    def __init__(self, state_dir: Path, store: RecordStore, keep: int) -> None:
        self.state_dir = state_dir
        self.store = store
        self._keep = keep

    def summaries(self, count: int, before: str = "") -> list[dict[str, Any]]:
        """Summaries of the newest `count` jobs, or of those before a job; the oldest first.

        Raises `BadInput` if there is no such job.
        """
        newest = job_specs.newest(self.store, count, before)
        return [self.summary(spec, state) for spec, state in newest]

    def summary(self, spec: JobSpec, state: JobState) -> dict[str, Any]:
        """The summary of a job that the pipeline does not have."""
        return job_views.summary(spec, state, None, time.monotonic()) | {"stage": ""}

    def detail(self, job_id: str) -> dict[str, Any]:
        """Everything about a finished job, read from the store. Raises `BadInput`."""
        spec, state = self.find(job_id)
        job = job_views.to_job(spec)
        path = job_specs.tasks_file(spec, self.state_dir)
        for task in load_tasks(path) if path and path.exists() else ():
            records, baseline = self.store.records(*task.key), self.store.baseline(*task.key)
            job.add(TaskState(task, records, baseline), task.weight)
        return self.summary(spec, state) | {"tasks": job_views.task_documents(job)}

    def find(self, job_id: str) -> tuple[JobSpec, JobState]:
        """A stored job. Raises `BadInput` if there is none."""
        job = job_specs.find(self.store, job_id)
        if job is None:
            raise BadInput(f"no job {job_id!r}; `tlmd jobs` lists them")
        return job

    def end(self, spec: JobSpec, state: JobState, reason: str, job: TuningJob | None) -> JobSpec:
        """Store a job that ends now, and remove the oldest finished ones; the job as stored."""
        spec = job_specs.ended(spec, reason)
        if job is not None:
            spec = job_views.with_progress(spec, job, time.monotonic())
        job_specs.save(self.store, spec, state)
        if self._keep:
            for old in job_specs.remove_oldest(self.store, self._keep):
                path = job_specs.tasks_file(old, self.state_dir)
                if path and path.parent == self.state_dir / "jobs":  # others belong to the user
                    path.unlink(missing_ok=True)
        return spec
