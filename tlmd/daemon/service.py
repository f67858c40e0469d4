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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.config import Config
from tlmd.daemon import jobs as files
from tlmd.daemon import status
from tlmd.daemon.book import JobBook
from tlmd.daemon.intake import Intake
from tlmd.daemon.jobs import JobSpec
from tlmd.daemon.trace import Trace
from tlmd.errors import BadInput, Failed, TlmdError
from tlmd.measure.cores import plan_slots
from tlmd.pipeline.board import Rules
from tlmd.pipeline.loop import Pipeline
from tlmd.pipeline.orders import Kind
from tlmd.records.store import RecordStore
from tlmd.types import TargetInfo

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

    ``ready`` is set when Ray runs, which has then taken the process's signals for itself.

    `settings` say how Ray is started or joined; with `resume` jobs that were not over go on.
    """

    def __init__(
        self, state_dir: Path, config: Config, settings: Settings, resume: bool = True
    ) -> None:
        self.state_dir = state_dir
        self.config = config
        self.ready = threading.Event()
        self.done = threading.Event()
        self.error = ""
        self.trace = Trace(state_dir / "trace.jsonl")
        self.store = RecordStore(state_dir / "records.sqlite")
        self.snapshot: dict[str, Any] = {}
        self.begun = time.time()
        self._settings = settings
        self._resume = resume
        self._calls: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self._pipeline: Pipeline | None = None
        self._cluster: Cluster | None = None
        self._book = JobBook(state_dir, self.store, self.trace, self._report, self._intake)
        self._stopping = False
        self._now = False
        self._looked = -math.inf
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._book.open(self._resume)
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

    def _report(self, what: Callable[[], Any]) -> Any:
        """The same for threads that outlive the daemon's wish to listen."""
        if not self._stopping:
            self.call(what)

    def submit(self, request: dict[str, Any]) -> str:
        """Start a job; its id. Raises `BadInput`."""
        spec = files.make_spec(request)

        def begin() -> str:
            if self._stopping:
                raise Failed("the daemon is stopping; start it again")
            self._book.begin(spec)
            return spec.id

        return str(self.call(begin))

    def cancel(self, job_id: str) -> None:
        """End a job. Raises `BadInput` for an unknown one."""
        self.call(lambda: self._book.cancel(job_id))

    def detail(self, job_id: str) -> dict[str, Any]:
        """Everything about a job. Raises `BadInput` for an unknown one."""
        found: dict[str, Any] = self.call(lambda: self._book.detail(job_id))
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
            self._book.close(self.error)
            self.snapshot = self.snapshot | {"jobs": self._book.summaries()}
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
            self.ready.set()
            self._pipeline = Pipeline(cluster, self.store, self._rules(), self.trace.tell)
            self._book.attach(self._pipeline)
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
            self._book.keep()
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
                result = what()
                self._looked = -math.inf  # whoever asked for a change sees it in the next status
                self._look()
                future.set_result(result)
            except Exception as error:
                future.set_exception(error)
            seconds = 0.0

    def _look(self) -> None:
        """What `tlmd status` shows, made anew twice a second."""
        if time.monotonic() < self._looked + _LOOK_S:
            return
        self._looked = time.monotonic()
        self.snapshot = status.snapshot(
            self._pipeline, self._book.summaries(), self.store, self._stopping, self.begun
        )

    def _registry(self, method: str, *arguments: Any) -> Any:
        if self._cluster is None:
            raise Failed("the daemon is starting; try again in a moment")
        return self._cluster.ask_registry(method, *arguments)

    def _intake(self, spec: JobSpec) -> Intake:
        slot = None
        if not self._settings.is_local:
            slot = self._slot_for(spec.target)
        layout = plan_slots(
            self.config.measure.slots, set(self._settings.cores), self._settings.run_cores
        )
        cores = len(layout[0].run)
        kept = str(self.state_dir / "corpus")
        return Intake(spec.model, spec.input_shapes, spec.target, spec.corpus, cores, slot, kept)

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
