"""Manages the jobs of a daemon: lowers their models, gives them to the pipeline, stores them."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tlmd.daemon import job_documents as job_views
from tlmd.daemon.event_log import EventLog
from tlmd.daemon.extraction_requests import ExtractionRequests
from tlmd.daemon.job_archive import JobArchive
from tlmd.daemon.task_extraction import TaskExtractor
from tlmd.data.config import CheckConfig
from tlmd.data.errors import BadInput, TlmdError
from tlmd.data.types import JobState, Task
from tlmd.pipeline.loop import Pipeline
from tlmd.pipeline.tuning_jobs import TuningJob
from tlmd.records import job_specs
from tlmd.records.job_specs import JobSpec
from tlmd.records.task_file import load_tasks, save_tasks

_log = logging.getLogger("tlmd")
_SAVED_EVERY_S = 5.0  # how much of a time budget was used
_RECENT = 20  # finished jobs that the status shows; the store has the others
_SUMMARISED = 20  # jobs whose summaries are made anew each time, beside those that changed


class JobManager:
    """The jobs of one state directory. Not thread-safe: only the pipeline's thread may use it.

    In memory are those that have not ended, and the `_RECENT` that ended last.

    Child processes lower the models. For each one a thread waits, which sends the tasks to the
    pipeline's thread through `call`. `requests` say how the model of a job is lowered. Jobs
    wait until `attach` gives them to the pipeline.
    """

    def __init__(
        self,
        archive: JobArchive,
        event_log: EventLog,
        call: Callable[[Callable[[], Any]], Any],
        requests: ExtractionRequests,
        limits: CheckConfig,
    ) -> None:
        self._archive = archive
        self._state_dir = archive.state_dir
        self._store = archive.store
        self._event_log = event_log
        self._call = call
        self._requests = requests
        self._limits = limits
        self._stages: dict[str, str] = {}
        self._specs: dict[str, tuple[JobSpec, JobState]] = {}
        self._summaries: dict[str, tuple[object, float, dict[str, Any]]] = {}
        """Summaries by job, each with the state that it shows, its time, and the summary."""
        self._counts: dict[str, int] | None = None  # None: something has changed
        self._waiting: dict[str, tuple[TuningJob, list[Task]]] = {}
        self._extractors: dict[str, TaskExtractor] = {}
        self._pipeline: Pipeline | None = None

    def open(self, resume: bool) -> None:
        """Read the stored jobs. Unfinished ones continue if `resume`; else they are cancelled."""
        for spec, state in job_specs.newest(self._store, _RECENT):
            if state.is_finished:
                self._specs[spec.id] = spec, state
        for spec, state in job_specs.unfinished(self._store):
            self._specs[spec.id] = spec, state
            if resume:
                self.begin(spec)
            else:
                self._end(spec, JobState.CANCELLED, "its command was interrupted")

    def attach(self, pipeline: Pipeline) -> None:
        """Give the waiting jobs to the pipeline, which has now started."""
        self._pipeline = pipeline
        for job, tasks in self._waiting.values():
            pipeline.add_job(job, tasks)
        self._waiting.clear()

    def start(self, spec: JobSpec) -> str:
        """Start a new job; return its id, which no other job has.

        Raises `BadInput` where no slot has the hardware of its tasks.
        """
        while self._store.job(spec.id) is not None:
            spec = replace(spec, id=f"{spec.id}-{secrets.token_hex(2)}")
        if spec.tasks and Path(spec.tasks).exists():
            self._requests.check_tasks(spec, load_tasks(Path(spec.tasks)))
        if self._pipeline is not None:  # later than all records that there are
            spec = replace(spec, created=self._pipeline.state.clock.now())
        self.begin(spec)
        return spec.id

    def begin(self, spec: JobSpec) -> None:
        """Begin or continue a job: read its tasks, or lower its model in a child process."""
        self._set(spec, JobState.PREPARING)
        self._add(job_views.to_job(spec), [])
        path = job_specs.tasks_file(spec, self._state_dir)
        if path and path.exists():
            try:
                self._add_last(spec, load_tasks(path))
                return
            except BadInput as error:
                _log.warning("%s; lowering the model again", error)
        extractor = self._extractors[spec.id] = TaskExtractor(
            self._state_dir / "logs" / "extraction.log", self._limits
        )
        threading.Thread(
            target=self._extract, args=(spec, extractor), name="extraction", daemon=True
        ).start()

    def cancel(self, job_id: str) -> None:
        """End a job. Raises `BadInput` if there is no such job."""
        spec, state = self._find(job_id)
        if not state.is_finished:
            self._drop(job_id, JobState.CANCELLED, "")
            self._end(spec, JobState.CANCELLED)

    def keep(self) -> None:
        """Store the new states of the jobs in the pipeline, and how much time they have used."""
        if self._pipeline is None:
            return
        for job in list(self._pipeline.jobs.values()):
            if job.id not in self._specs:
                continue
            spec, state = self._specs[job.id]
            if state is JobState.PREPARING and job.state is JobState.RUNNING and not job.tasks:
                continue  # its model is still being prepared
            used_s = job.spent_s - spec.spent_s
            if state.is_finished or (job.state is state and used_s < _SAVED_EVERY_S):
                continue
            spec = replace(spec, spent_s=job.spent_s)
            if job.state.is_finished:
                self._end(spec, job.state, job.reason)
            else:
                self._set(spec, job.state)
        self._pipeline.forget_finished()

    def summaries(self) -> list[dict[str, Any]]:
        """The summaries of all jobs in memory, which `tlmd status` and the page show.

        Of many jobs, those that changed and a few others are summarised anew each time.
        """
        now = time.monotonic()
        due = sorted(self._specs, key=lambda job_id: self._made_at(job_id))[:_SUMMARISED]
        for job_id, (spec, state) in self._specs.items():
            job = self._job(job_id)
            stage = self._stages.get(job_id, "") if state is JobState.PREPARING else ""
            news = (job.measured_now, job.reason) if job else ()
            depends = (state, stage, spec.reason, *news)
            cached = self._summaries.get(job_id)
            if cached is None or cached[0] != depends or (job_id in due and not state.is_finished):
                document = job_views.summary(spec, state, job, now) | {"stage": stage}
                self._summaries[job_id] = depends, now, document
        return [self._summaries[job_id][2] for job_id in self._specs]

    def _made_at(self, job_id: str) -> float:
        if self._specs[job_id][1].is_finished or job_id not in self._summaries:
            return math.inf
        return self._summaries[job_id][1]

    def counts(self) -> dict[str, int]:
        """How many stored jobs are in each state."""
        if self._counts is None:
            self._counts = self._store.job_counts()
        return self._counts

    def detail(self, job_id: str) -> dict[str, Any] | None:
        """Everything about a job of the pipeline; None for another one."""
        job = self._job(job_id)
        if job is None or job_id not in self._specs:
            return None
        return job_views.detail(*self._specs[job_id], job, time.monotonic())

    def close(self, error: str) -> None:
        """Stop lowering models. If the daemon failed with `error`, show unfinished jobs as failed.

        Their stored state stays unfinished, so that the next daemon continues them.
        """
        for extractor in self._extractors.values():
            extractor.cancel()
        for spec, state in list(self._specs.values()) if error else ():
            if not state.is_finished:
                self._specs[spec.id] = replace(spec, reason=error), JobState.FAILED

    def _extract(self, spec: JobSpec, extractor: TaskExtractor) -> None:
        """Lower the model and send its tasks to the pipeline's thread. Runs in its own thread."""
        tasks: list[Task] = []

        def on_tasks(new: list[Task]) -> None:
            if spec.request.corpus:
                self._call(lambda: self._requests.check_tasks(spec, new))
            tasks.extend(new)
            if spec.request.corpus:  # a corpus takes long: measure the first tasks already
                self._call(lambda: self._extend(spec.id, new))

        def on_stage(text: str) -> None:
            self._call(lambda: self._stages.update({spec.id: text}))

        try:
            request = self._requests.of(spec, on_stage)
            extractor.run(request, spec.request.cwd, on_tasks, on_stage)
            path = self._state_dir / "jobs" / f"{spec.id}.tasks"
            save_tasks(path, tasks)
            self._call(lambda: self._add_last(replace(spec, tasks=str(path)), tasks))
        except Exception as error:
            if not isinstance(error, TlmdError):
                _log.exception("lowering the model of job %s failed", spec.id)
            reason = str(error)
            self._call(lambda: self._reject(spec.id, reason))

    def _extend(self, job_id: str, tasks: list[Task]) -> None:
        job = self._job(job_id)
        if job is not None and not job.state.is_finished:
            self._add(job, tasks)

    def _add(self, job: TuningJob, tasks: list[Task]) -> None:
        self._store.add_tasks(tasks)
        self._give(job, tasks)

    def _give(self, job: TuningJob, tasks: list[Task]) -> None:
        """Give a job, or more of its tasks, to the pipeline."""
        if self._pipeline is None:
            self._waiting.setdefault(job.id, (job, []))[1].extend(tasks)
        else:
            self._pipeline.add_job(job, tasks)

    def _add_last(self, spec: JobSpec, tasks: list[Task]) -> None:
        """Add the last tasks of a job: from now on, all of its tasks are known."""
        self._extractors.pop(spec.id, None)
        job = self._job(spec.id)
        if job is None or self._specs[spec.id][1].is_finished:
            return
        # Entries that a full disk refused come first: then this is called again.
        self._store.add_tasks(tasks)
        self._set(spec, JobState.RUNNING)
        job.all_tasks_known = True
        self._give(job, tasks)

    def _reject(self, job_id: str, reason: str) -> None:
        spec, state = self._specs[job_id]
        if not state.is_finished:
            self._drop(job_id, JobState.FAILED, reason)
            self._end(spec, JobState.FAILED, reason)
            self._event_log.emit("job", job=job_id, state="failed", reason=reason)

    def _drop(self, job_id: str, state: JobState, reason: str) -> None:
        if job_id in self._extractors:
            self._extractors.pop(job_id).cancel()
        self._waiting.pop(job_id, None)
        if self._pipeline is not None and job_id in self._pipeline.jobs:
            self._pipeline.cancel(job_id, state, reason)

    def _set(self, spec: JobSpec, state: JobState) -> None:
        job_specs.save(self._store, spec, state)
        self._specs[spec.id] = spec, state
        self._counts = None

    def _end(self, spec: JobSpec, state: JobState, reason: str = "") -> None:
        """A job has ended; forget what is shown no more."""
        self._stages.pop(spec.id, None)
        spec = self._archive.end(spec, state, reason, self._job(spec.id))
        self._specs[spec.id] = spec, state
        self._counts = None
        finished = [key for key, (_, last) in self._specs.items() if last.is_finished]
        for job_id in finished[:-_RECENT]:
            del self._specs[job_id]
            self._summaries.pop(job_id, None)

    def _find(self, job_id: str) -> tuple[JobSpec, JobState]:
        return self._specs.get(job_id) or self._archive.find(job_id)

    def _job(self, job_id: str) -> TuningJob | None:
        if job_id in self._waiting:
            return self._waiting[job_id][0]
        return self._pipeline.jobs.get(job_id) if self._pipeline else None
