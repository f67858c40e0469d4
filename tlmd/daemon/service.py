"""The daemon's heart: one thread runs the pipeline; jobs and their state belong to it.

Everything others ask for (HTTP, signals) is a call that this thread carries out between two steps,
so that nothing here needs a lock. This is the one module that puts Ray, the store and the pipeline
together.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.config import Config
from tlmd.daemon import jobs as files
from tlmd.daemon import status
from tlmd.daemon.intake import Intake, Intaker
from tlmd.daemon.jobs import JobSpec
from tlmd.daemon.trace import Trace
from tlmd.errors import BadInput, Failed, TlmdError
from tlmd.measure.cores import plan_slots
from tlmd.pipeline.board import Rules
from tlmd.pipeline.jobs import Job, JobState
from tlmd.pipeline.loop import Pipeline
from tlmd.pipeline.orders import Kind
from tlmd.records.store import RecordStore
from tlmd.types import TargetInfo, Task
from tlmd.workloads.corpus import load_tasks, save_tasks

if TYPE_CHECKING:
    from actors.cluster import Cluster
    from actors.session import Settings

_log = logging.getLogger("tlmd")
_STEP_S = 0.2
_LOOK_S = 0.5
_DRAIN_S = 60.0
_LEARN_S = 8.0


class Service:
    """Runs until `stop`; `done` is set when everything has ended, `error` says why if it failed.

    `settings` say how Ray is started or joined; with `resume` jobs that were not over go on.
    """

    def __init__(
        self, state_dir: Path, config: Config, settings: Settings, resume: bool = True
    ) -> None:
        self.state_dir = state_dir
        self.config = config
        self.done = threading.Event()
        self.error = ""
        self.trace = Trace(state_dir / "trace.jsonl")
        self.store = RecordStore(state_dir / "records.sqlite")
        self.snapshot: dict[str, Any] = {}
        self.specs: dict[str, tuple[JobSpec, JobState]] = {}
        self.begun = time.time()
        self._settings = settings
        self._resume = resume
        self._calls: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self._pipeline: Pipeline | None = None
        self._cluster: Cluster | None = None
        self._waiting: dict[str, tuple[Job, list[Task]]] = {}  # for the pipeline to be there
        self._intakes: dict[str, Intaker] = {}
        self._stopping = False
        self._now = False
        self._looked = -math.inf
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)

    def start(self) -> None:
        """Begin."""
        for spec, state in files.stored(self.store):
            self.specs[spec.id] = spec, state
            if not state.over and self._resume:
                self._begin(spec)
            elif not state.over:
                self._set(files.ended(spec, "its command was interrupted"), JobState.CANCELLED)
        self._look()
        self._thread.start()

    # what others ask for, from any thread

    def call(self, what: Callable[[], Any], timeout: float = 60.0) -> Any:
        """Carry out `what` between two steps of the pipeline; its result or its error."""
        future: Future[Any] = Future()
        self._calls.put((what, future))
        if self.done.is_set():
            raise Failed("the daemon has ended")
        return future.result(timeout)

    def submit(self, request: dict[str, Any]) -> str:
        """Start a job; its id. Raises `BadInput`."""
        spec = files.make_spec(request)

        def begin() -> str:
            if self._stopping:
                raise Failed("the daemon is stopping; start it again")
            files.save(self.store, spec, JobState.PREPARING)
            self._begin(spec)
            return spec.id

        return str(self.call(begin))

    def cancel(self, job_id: str) -> None:
        """End a job. Raises `BadInput` for an unknown one."""
        self.call(lambda: self._cancel(job_id))

    def detail(self, job_id: str) -> dict[str, Any]:
        """Everything about a job. Raises `BadInput` for an unknown one."""

        def look() -> dict[str, Any]:
            spec, state = self._spec(job_id)
            return files.detail(spec, state, self._job(job_id), time.monotonic())

        found: dict[str, Any] = self.call(look)
        return found

    def pause(self, paused: bool) -> None:
        """Stop handing out work, or go on."""

        def switch() -> None:
            if self._pipeline is None:
                raise Failed("the daemon is starting; try again in a moment")
            self._pipeline.paused = paused
            self.trace.tell("paused" if paused else "resumed")

        self.call(switch)

    def checkpoints(self) -> list[dict[str, Any]]:
        """Every version there is."""
        found: list[dict[str, Any]] = self.call(lambda: self._registry("versions"))
        return found

    def use_checkpoint(self, method: str, version: int) -> int:
        """Promote a version or roll back to it; the one in force. Raises `BadInput`."""

        def use() -> int:
            current = int(self._registry(method, version))
            assert self._pipeline is not None
            self._pipeline.learning.use(current)
            self.trace.tell("checkpoint", action=method, version=current)
            return current

        return int(self.call(use))

    def stop(self, now: bool = False) -> None:
        """Finish what is in flight and end; `now` leaves it. Returns at once."""
        self._stopping = True
        self._now = self._now or now

    # the pipeline's thread

    def _run(self) -> None:
        try:
            self._with_cluster()
        except TlmdError as error:
            self.error = str(error)
            _log.error("%s", error)
        except BaseException as error:
            self.error = f"{type(error).__name__}: {error}"
            _log.exception("the daemon has failed")
        finally:
            for intake in self._intakes.values():
                intake.cancel()
            self._fail_all()
            self.store.close()
            self.trace.close()
            self.done.set()
            self._answer()

    def _with_cluster(self) -> None:
        from actors import session

        session.prepare(self._settings)
        from actors.cluster import Cluster

        with contextlib.closing(Cluster(self._settings)) as cluster:
            self._start_cluster(cluster)
            self._cluster = cluster
            self._pipeline = Pipeline(cluster, self.store, self._rules(), self.trace.tell)
            for job, tasks in self._waiting.values():
                self._pipeline.add_job(job, tasks)
            self._waiting.clear()
            self._loop(self._pipeline)

    def _start_cluster(self, cluster: Cluster) -> None:
        """Starting takes some seconds, in which jobs are taken in already."""
        starting: Future[None] = Future()

        def start() -> None:
            try:
                cluster.start()
                starting.set_result(None)
                self.done.wait()  # Ray's processes die with the thread that started them
            except Exception as error:
                starting.set_exception(error)

        threading.Thread(target=start, name="start", daemon=True).start()
        while not starting.done():
            self._answer(_STEP_S)
            self._look()
        starting.result()

    def _loop(self, pipeline: Pipeline) -> None:
        begun = math.inf  # of draining
        while True:
            self._answer()
            if self._stopping and begun == math.inf:
                pipeline.drain()
                begun = time.monotonic()
            if self._stopping and self._drained(pipeline, time.monotonic() - begun):
                return
            pipeline.step(_STEP_S)
            self._keep_states(pipeline)
            self._look()

    def _drained(self, pipeline: Pipeline, seconds: float) -> bool:
        """Whether to end: nothing is in flight, or it takes too long. A checkpoint can be lost."""
        learnt = pipeline.learning.is_idle or seconds > _LEARN_S
        return self._now or seconds > _DRAIN_S or (pipeline.is_drained and learnt)

    def _answer(self, seconds: float = 0.0) -> None:
        """Carry out what others asked for, waiting `seconds` for the first of it."""
        while True:
            try:
                what, future = self._calls.get(seconds > 0, seconds)
            except queue.Empty:
                return
            try:
                future.set_result(what())
            except Exception as error:
                future.set_exception(error)
            seconds = 0.0

    def _look(self) -> None:
        """What `tlmd status` shows, made anew twice a second."""
        if time.monotonic() < self._looked + _LOOK_S:
            return
        self._looked = time.monotonic()
        self.snapshot = status.snapshot(
            self._pipeline, self._summaries(), self.store, self._stopping, self.begun
        )

    def _summaries(self) -> list[dict[str, Any]]:
        now = time.monotonic()
        return [files.summary(s, state, self._job(s.id), now) for s, state in self.specs.values()]

    def _keep_states(self, pipeline: Pipeline) -> None:
        """Keep on disk what became of jobs."""
        for job in pipeline.jobs.values():
            spec, state = self.specs[job.id]
            if job.state is not state and not state.over:
                self._set(files.ended(spec, job.reason) if job.state.over else spec, job.state)

    def _set(self, spec: JobSpec, state: JobState) -> None:
        self.specs[spec.id] = spec, state
        files.save(self.store, spec, state)

    def _spec(self, job_id: str) -> tuple[JobSpec, JobState]:
        if job_id not in self.specs:
            raise BadInput(f"no job {job_id!r}; `tlmd jobs` lists them")
        return self.specs[job_id]

    def _job(self, job_id: str) -> Job | None:
        if job_id in self._waiting:
            return self._waiting[job_id][0]
        return self._pipeline.jobs.get(job_id) if self._pipeline else None

    def _registry(self, method: str, *arguments: Any) -> Any:
        if self._cluster is None:
            raise Failed("the daemon is starting; try again in a moment")
        return self._cluster.ask_registry(method, *arguments)

    def _fail_all(self) -> None:
        """Whoever waits for a job learns that the daemon could not work."""
        if self.error:
            for spec, state in list(self.specs.values()):
                if not state.over:
                    self.specs[spec.id] = replace(spec, reason=self.error), JobState.FAILED
            self.snapshot = self.snapshot | {"jobs": self._summaries()}

    # intake

    def _begin(self, spec: JobSpec) -> None:
        """Get the tasks of a job: from its file, or by lowering its model in another process."""
        job = files.to_job(spec)
        self.specs[spec.id] = spec, JobState.PREPARING
        self._add(job, [])
        if spec.tasks and Path(spec.tasks).exists():
            try:
                self._whole(spec, load_tasks(Path(spec.tasks)))
                return
            except BadInput as error:
                _log.warning("%s; lowering the model again", error)
        intaker = self._intakes[spec.id] = Intaker(self.state_dir / "logs" / "intake.log")
        threading.Thread(
            target=self._take_in, args=(spec, intaker), name="intake", daemon=True
        ).start()

    def _take_in(self, spec: JobSpec, intaker: Intaker) -> None:
        """Runs in a thread of its own; what it finds goes to the pipeline's."""
        tasks: list[Task] = []

        def on_tasks(found: list[Task]) -> None:
            tasks.extend(found)
            if spec.corpus:  # a corpus is long: what is there can be measured
                self.call(lambda: self._add(self._job(spec.id) or files.to_job(spec), found))

        try:
            intaker.run(self._intake(spec), spec.cwd, on_tasks)
            path = self.state_dir / "jobs" / f"{spec.id}.tasks"
            save_tasks(path, tasks)
            whole = replace(spec, tasks=str(path))
            self.call(lambda: self._whole(whole, tasks))
        except Exception as error:
            if not isinstance(error, TlmdError):
                _log.exception("the intake of %s failed", spec.id)
            reason = str(error)
            if not self.done.is_set() and not self._stopping:
                self.call(lambda: self._reject(spec.id, reason))

    def _intake(self, spec: JobSpec) -> Intake:
        slot = None
        if not self._settings.is_local:
            slot = self._slot_for(spec.target)
        layout = plan_slots(
            self.config.measure.slots, set(self._settings.cores), self._settings.run_cores
        )
        cores = len(layout[0].run)
        return Intake(spec.model, spec.input_shapes, spec.target, spec.corpus, cores, slot)

    def _slot_for(self, target: str) -> TargetInfo:
        """The hardware of a cluster that a job is for; waits until a slot offers it."""
        name = target.removeprefix("slot:")
        if target not in ("native", f"slot:{name}"):
            raise BadInput(
                "on a cluster the target is 'native' (its first slot's) or 'slot:NAME' for nodes "
                "that offer the resource measure:NAME"
            )
        while not self._stopping:
            for slot in self._pipeline.board.of(Kind.MEASURER) if self._pipeline else []:
                if slot.target and (target == "native" or slot.resource == f"measure:{name}"):
                    return slot.target
            time.sleep(_STEP_S)
        raise Failed("the daemon is stopping")

    def _add(self, job: Job, tasks: list[Task]) -> None:
        self.store.add_tasks(tasks)
        if self._pipeline is None:
            self._waiting.setdefault(job.id, (job, []))[1].extend(tasks)
        else:
            self._pipeline.add_job(job, tasks)

    def _whole(self, spec: JobSpec, tasks: list[Task]) -> None:
        """All tasks of a job are known."""
        self._intakes.pop(spec.id, None)
        job = self._job(spec.id)
        if job is None or self.specs[spec.id][1].over:
            return
        job.whole = True
        self._add(job, tasks)
        self._set(spec, JobState.RUNNING)

    def _reject(self, job_id: str, reason: str) -> None:
        self._intakes.pop(job_id, None)
        spec, state = self.specs[job_id]
        if state.over:
            return
        self._drop(job_id, JobState.FAILED, reason)
        self._set(files.ended(spec, reason), JobState.FAILED)
        self.trace.tell("job", job=job_id, state="failed", reason=reason)

    def _cancel(self, job_id: str) -> None:
        spec, state = self._spec(job_id)
        if state.over:
            return
        if job_id in self._intakes:
            self._intakes.pop(job_id).cancel()
        self._drop(job_id, JobState.CANCELLED, "")
        self._set(files.ended(spec), JobState.CANCELLED)

    def _drop(self, job_id: str, state: JobState, reason: str) -> None:
        self._waiting.pop(job_id, None)
        if self._pipeline is not None and job_id in self._pipeline.jobs:
            self._pipeline.cancel(job_id, state, reason)

    def _rules(self) -> Rules:
        p, t, g = self.config.pipeline, self.config.train, self.config.generate
        return Rules(
            p.batch,
            p.turn,
            p.chunk,
            p.depth,
            p.strict,
            t.enabled,
            t.seconds,
            g.over,
            g.least,
            g.most,
            p.window,
            p.gain,
        )
