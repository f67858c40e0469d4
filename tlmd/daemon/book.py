"""Every job of a daemon: taken in, handed to the pipeline, kept on disk, shown to others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tlmd.daemon import jobs as files
from tlmd.daemon.intake import Intake, Intaker
from tlmd.daemon.jobs import JobSpec
from tlmd.daemon.trace import Trace
from tlmd.errors import BadInput, TlmdError
from tlmd.pipeline.jobs import Job, JobState
from tlmd.pipeline.loop import Pipeline
from tlmd.records.store import RecordStore
from tlmd.types import Task
from tlmd.workloads.corpus import load_tasks, save_tasks

_log = logging.getLogger("tlmd")


class JobBook:
    """The jobs of one state directory. Used by the pipeline's thread, as the pipeline is.

    Models are lowered in processes of their own, watched by threads that report through `call`;
    `intake_of` says how a job's model is lowered. Until `attach`, jobs wait for the pipeline.
    """

    def __init__(
        self,
        state_dir: Path,
        store: RecordStore,
        trace: Trace,
        call: Callable[[Callable[[], Any]], Any],
        intake_of: Callable[[JobSpec], Intake],
    ) -> None:
        self._state_dir = state_dir
        self._store = store
        self._trace = trace
        self._call = call
        self._intake_of = intake_of
        self._specs: dict[str, tuple[JobSpec, JobState]] = {}
        self._waiting: dict[str, tuple[Job, list[Task]]] = {}
        self._intakes: dict[str, Intaker] = {}
        self._pipeline: Pipeline | None = None

    def open(self, resume: bool) -> None:
        """Read what is stored; with `resume` jobs that were not over go on."""
        for spec, state in files.stored(self._store):
            self._specs[spec.id] = spec, state
            if not state.over and resume:
                self.begin(spec)
            elif not state.over:
                self._set(files.ended(spec, "its command was interrupted"), JobState.CANCELLED)

    def attach(self, pipeline: Pipeline) -> None:
        """The pipeline is there: give it the jobs that wait."""
        self._pipeline = pipeline
        for job, tasks in self._waiting.values():
            pipeline.add_job(job, tasks)
        self._waiting.clear()

    def begin(self, spec: JobSpec) -> None:
        """Get the tasks of a job: from its file, or by lowering its model in another process."""
        self._set(spec, JobState.PREPARING)
        self._add(files.to_job(spec), [])
        if spec.tasks and Path(spec.tasks).exists():
            try:
                self._whole(spec, load_tasks(Path(spec.tasks)))
                return
            except BadInput as error:
                _log.warning("%s; lowering the model again", error)
        intaker = self._intakes[spec.id] = Intaker(self._state_dir / "logs" / "intake.log")
        threading.Thread(
            target=self._take_in, args=(spec, intaker), name="intake", daemon=True
        ).start()

    def cancel(self, job_id: str) -> None:
        """End a job. Raises `BadInput` for an unknown one."""
        spec, state = self._find(job_id)
        if not state.over:
            self._drop(job_id, JobState.CANCELLED, "")
            self._set(files.ended(spec), JobState.CANCELLED)

    def keep(self) -> None:
        """Keep on disk what became of the jobs in the pipeline."""
        for job in self._pipeline.jobs.values() if self._pipeline else ():
            spec, state = self._specs[job.id]
            if job.state is not state and not state.over:
                self._set(files.ended(spec, job.reason) if job.state.over else spec, job.state)

    def summaries(self) -> list[dict[str, Any]]:
        """What `tlmd jobs` shows."""
        now = time.monotonic()
        return [files.summary(s, state, self._job(s.id), now) for s, state in self._specs.values()]

    def detail(self, job_id: str) -> dict[str, Any]:
        """Everything about a job. Raises `BadInput` for an unknown one."""
        spec, state = self._find(job_id)
        return files.detail(spec, state, self._job(job_id), time.monotonic())

    def close(self, error: str) -> None:
        """End what is being taken in; whoever waits for a job learns of the daemon's `error`.

        On disk the jobs are not over: the next daemon goes on with them.
        """
        for intaker in self._intakes.values():
            intaker.cancel()
        for spec, state in list(self._specs.values()) if error else ():
            if not state.over:
                self._specs[spec.id] = replace(spec, reason=error), JobState.FAILED

    def _take_in(self, spec: JobSpec, intaker: Intaker) -> None:
        """Runs in a thread of its own; what it finds goes to the pipeline's."""
        tasks: list[Task] = []

        def on_tasks(found: list[Task]) -> None:
            tasks.extend(found)
            if spec.corpus:  # a corpus is long: what is there can be measured
                self._call(lambda: self._extend(spec.id, found))

        try:
            intaker.run(self._intake_of(spec), spec.cwd, on_tasks)
            path = self._state_dir / "jobs" / f"{spec.id}.tasks"
            save_tasks(path, tasks)
            self._call(lambda: self._whole(replace(spec, tasks=str(path)), tasks))
        except Exception as error:
            if not isinstance(error, TlmdError):
                _log.exception("the intake of %s failed", spec.id)
            reason = str(error)
            self._call(lambda: self._reject(spec.id, reason))

    def _extend(self, job_id: str, tasks: list[Task]) -> None:
        job = self._job(job_id)
        if job is not None and not job.state.over:
            self._add(job, tasks)

    def _add(self, job: Job, tasks: list[Task]) -> None:
        self._store.add_tasks(tasks)
        if self._pipeline is None:
            self._waiting.setdefault(job.id, (job, []))[1].extend(tasks)
        else:
            self._pipeline.add_job(job, tasks)

    def _whole(self, spec: JobSpec, tasks: list[Task]) -> None:
        """All tasks of a job are known."""
        self._intakes.pop(spec.id, None)
        job = self._job(spec.id)
        if job is None or self._specs[spec.id][1].over:
            return
        job.whole = True
        self._add(job, tasks)
        self._set(spec, JobState.RUNNING)

    def _reject(self, job_id: str, reason: str) -> None:
        spec, state = self._specs[job_id]
        if not state.over:
            self._drop(job_id, JobState.FAILED, reason)
            self._set(files.ended(spec, reason), JobState.FAILED)
            self._trace.tell("job", job=job_id, state="failed", reason=reason)

    def _drop(self, job_id: str, state: JobState, reason: str) -> None:
        if job_id in self._intakes:
            self._intakes.pop(job_id).cancel()
        self._waiting.pop(job_id, None)
        if self._pipeline is not None and job_id in self._pipeline.jobs:
            self._pipeline.cancel(job_id, state, reason)

    def _set(self, spec: JobSpec, state: JobState) -> None:
        self._specs[spec.id] = spec, state
        files.save(self._store, spec, state)

    def _find(self, job_id: str) -> tuple[JobSpec, JobState]:
        if job_id not in self._specs:
            raise BadInput(f"no job {job_id!r}; `tlmd jobs` lists them")
        return self._specs[job_id]

    def _job(self, job_id: str) -> Job | None:
        if job_id in self._waiting:
            return self._waiting[job_id][0]
        return self._pipeline.jobs.get(job_id) if self._pipeline else None
