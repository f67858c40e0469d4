"""The core of the daemon: one thread runs the pipeline and owns the jobs and their states.

Requests from other threads (HTTP, signals) are calls, which this thread carries out between two
steps of the pipeline. Therefore nothing here needs a lock. Only this module connects Ray, the store
and the pipeline.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.corpus.known_programs import KnownPrograms
from tlmd.daemon import metrics, status
from tlmd.daemon.event_log import EventLog
from tlmd.daemon.extraction_requests import ExtractionRequests, Slots
from tlmd.daemon.job_archive import JobArchive
from tlmd.daemon.job_documents import make_spec
from tlmd.daemon.job_manager import JobManager
from tlmd.daemon.store_check import StoreCheck
from tlmd.daemon.thread_calls import CallQueue
from tlmd.data.config import Config
from tlmd.data.errors import DiskFull, Failed, TlmdError
from tlmd.measure.cores.background import BackgroundWork, OtherPrograms
from tlmd.measure.cores.core_plan import plan_slots
from tlmd.pipeline.loop import Pipeline
from tlmd.pipeline.orders import WorkerKind
from tlmd.pipeline.state import PipelineOptions
from tlmd.records.store import RecordStore

if TYPE_CHECKING:
    from actors.cluster import Cluster
    from actors.session import Settings

_log = logging.getLogger("tlmd")
_STEP_S = 0.2
_SNAPSHOT_S = 0.5
_PAUSED = "paused"
_DRAIN_S = 60.0  # longest wait for work in flight when the daemon stops
_TRAINING_S = 8.0  # longest wait for a round of training when the daemon stops
_FULL_S = 1.0  # between two tries to write to a full disk
_LOOKING_S = 3600.0  # longest wait of a thread that looks for a slot, while the pipeline is busy


class Service:
    """The daemon without its HTTP interface. It runs until `stop`.

    ``ready`` is set when Ray runs; Ray has then replaced the signal handlers of the process.
    ``done`` is set when everything has ended; ``error`` is the reason if the daemon failed.
    `settings` say how to start or join Ray. With `resume`, unfinished jobs continue. All public
    methods but `start` may be called from any thread.
    """

    def __init__(
        self, state_dir: Path, config: Config, settings: Settings, resume: bool = True
    ) -> None:
        self.state_dir = state_dir
        self.config = config
        self.ready = threading.Event()
        self.done = threading.Event()
        self.error: TlmdError | None = None
        kept = config.daemon
        self.event_log = EventLog(state_dir / "trace.jsonl", kept.log_bytes, kept.keep_logs)
        self.store = RecordStore(state_dir / "records.sqlite")
        self.snapshot: dict[str, Any] = {}
        self.started_at = time.monotonic()
        self._store_check = StoreCheck(self.store)
        self._settings = settings
        self._run_cores = len(
            plan_slots(config.measure.slots, set(settings.cores), settings.run_cores)[0].run
        )
        others = OtherPrograms(settings.cores)
        self._background = BackgroundWork(others, config.measure.background_share)
        self._resume = resume
        self._calls = CallQueue()
        self._pipeline: Pipeline | None = None
        self._cluster: Cluster | None = None
        self.archive = JobArchive(state_dir, self.store, kept.keep_jobs)
        requests = ExtractionRequests(
            state_dir, self._run_cores, self._ask_slots, settings.is_local, lambda: self._stopping
        )
        self._jobs = JobManager(self.archive, self.event_log, self._report, requests, config.check)
        self._stopping = False
        self._now = False
        self._snapshot_at = -math.inf
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)

    def start(self) -> None:
        """Start the pipeline's thread."""
        self._jobs.open(self._resume)
        self._update_snapshot()
        self._thread.start()

    def call(self, function: Callable[[], Any], timeout: float = 60.0) -> Any:
        """Run `function` between two steps of the pipeline; return its result or raise its error.

        Raises `Failed` if the daemon has ended, and `TimeoutError` where the pipeline's thread had
        no time for it within `timeout` seconds; then it never runs.
        """
        return self._calls.call(function, timeout, self.done.is_set)

    def _report(self, function: Callable[[], Any]) -> Any:
        """`call` for threads that may still run when the daemon is stopping: then do nothing.

        On a full disk it is tried again until there is room.
        """
        while not self._stopping:
            try:
                return self.call(function)
            except DiskFull:
                time.sleep(_FULL_S)
        return None

    def submit(self, request: dict[str, Any]) -> str:
        """Start a job and return its id. Raises `BadInput`."""
        spec = make_spec(request)

        def begin() -> str:
            if self._stopping:
                raise Failed("the daemon is stopping; start it again")
            return self._jobs.start(spec)

        return str(self.call(begin))

    def cancel(self, job_id: str) -> None:
        """End a job. Raises `BadInput` if there is no such job."""
        self.call(lambda: self._jobs.cancel(job_id))

    def detail(self, job_id: str) -> dict[str, Any]:
        """Everything about a job. Raises `BadInput` if there is no such job."""
        document: dict[str, Any] | None = None
        if not self.archive.find(job_id)[1].is_finished:
            document = self.call(lambda: self._jobs.detail(job_id))
        return document or self.archive.detail(job_id)

    def pause(self, paused: bool) -> None:
        """Give out no more work, or continue."""

        def switch() -> None:
            if self._pipeline is None:
                raise Failed("the daemon is starting; try again in a moment")
            self.store.set_flag(_PAUSED, paused)
            self._pipeline.paused = paused
            self.event_log.emit("paused" if paused else "resumed")

        self.call(switch)

    def checkpoints(self) -> list[dict[str, Any]]:
        """All stored versions of the TLM. The pipeline's thread is not asked."""
        documents: list[dict[str, Any]] = self._registry().ask_registry("versions")
        return documents

    def use_checkpoint(self, method: str, *version: int) -> int:
        """Have the registry ``promote``, ``rollback`` or ``unpin``; return the version in force.

        Raises `BadInput`.
        """
        current = int(self._registry().ask_registry(method, *version))

        def use() -> None:
            assert self._pipeline is not None
            self._pipeline.learning.use(current)
            self.event_log.emit("checkpoint", action=method, version=current)

        self.call(use)
        return current

    def stop(self, now: bool = False) -> None:
        """Ask the daemon to end and return at once. With `now`, it drops the work in flight."""
        self._stopping = self._settings.stopping = True
        self._now = self._now or now

    def _ask_slots(self) -> Slots:
        if threading.current_thread() is self._thread:
            return self._slots()
        slots: Slots = self.call(self._slots, _LOOKING_S)
        return slots

    # The methods below run in the pipeline's thread.

    def _run(self) -> None:
        try:
            self._with_cluster()
        except TlmdError as error:
            self.error = error
            _log.error("%s", error)
        except BaseException as error:
            self.error = Failed(f"{type(error).__name__}: {error}")
            _log.exception("the daemon has failed")
        finally:
            self._jobs.close(str(self.error or ""))
            self.snapshot = self.snapshot | {"jobs": self._jobs.summaries()}
            self.store.close()
            self.event_log.close()
            self.done.set()
            self._answer()

    def _with_cluster(self) -> None:
        from actors import session

        session.prepare(self._settings)
        from actors.cluster import Cluster

        with contextlib.closing(Cluster(self._settings)) as cluster:
            self._start_cluster(cluster)
            cluster.export(lambda: metrics.families(self.snapshot, dict(self.event_log.counts)))
            self._cluster = cluster
            self.ready.set()
            c, known = self.config, KnownPrograms.of_state(self.state_dir).timed
            options = PipelineOptions(c.pipeline, c.train, c.generate, c.registry)
            self._pipeline = Pipeline(cluster, self.store, options, self.event_log.emit, known)
            self._pipeline.paused = self.store.flag(_PAUSED)
            self._jobs.attach(self._pipeline)
            self._loop(self._pipeline)

    def _start_cluster(self, cluster: Cluster) -> None:
        """Start the cluster, which takes some seconds, and answer requests meanwhile."""
        starting: Future[None] = Future()

        def start() -> None:
            try:
                cluster.start()
                starting.set_result(None)
                self.done.wait()  # Ray's processes end when the thread that started them ends
            except Exception as error:
                starting.set_exception(error)

        threading.Thread(target=start, name="start", daemon=True).start()
        while not starting.done():
            self._answer(_STEP_S)
            self._update_snapshot()
        starting.result()

    def _loop(self, pipeline: Pipeline) -> None:
        draining_since = math.inf
        while True:
            self._store_check.raise_damage()
            self._answer()
            if self._stopping and draining_since == math.inf:
                pipeline.drain()
                draining_since = time.monotonic()
            if self._stopping and self._drained(pipeline, time.monotonic() - draining_since):
                return
            pipeline.step(_STEP_S)
            with contextlib.suppress(DiskFull):  # the pipeline says so; the next step tries again
                self._jobs.keep()
            self._update_snapshot()

    def _drained(self, pipeline: Pipeline, seconds: float) -> bool:
        """Whether to end: nothing is in flight, or draining takes too long. May drop a training."""
        trained = pipeline.learning.is_idle or seconds > _TRAINING_S
        return self._now or seconds > _DRAIN_S or (pipeline.is_drained and trained)

    def _answer(self, seconds: float = 0.0) -> None:
        """Carry out the calls of other threads. Wait up to `seconds` for the first one."""
        self._calls.answer(seconds, self._renew_snapshot)

    def _renew_snapshot(self) -> None:
        """A caller sees its change in the next status."""
        self._snapshot_at = -math.inf
        self._update_snapshot()

    def _update_snapshot(self) -> None:
        """Update the document that `tlmd status` shows, at most twice a second."""
        if self.done.is_set() or time.monotonic() < self._snapshot_at + _SNAPSHOT_S:
            return  # what was last known stays, and the store is closed
        self._snapshot_at = time.monotonic()
        self.snapshot = status.snapshot(
            self._pipeline,
            self._jobs.summaries(),
            self._jobs.counts(),
            self.store,
            self._stopping,
            self.started_at,
            self._run_cores,
            self._background,
        )

    def _registry(self) -> Cluster:
        if self._cluster is None or self._pipeline is None:
            raise Failed("the daemon is starting; try again in a moment")
        return self._cluster

    def _slots(self) -> Slots:
        """The slots that have joined, and what the nodes offer."""
        if self._pipeline is None:
            return [], None
        slots = self._pipeline.state.workers_of(WorkerKind.MEASURER)
        return slots, self._cluster.offered if self._cluster else None
