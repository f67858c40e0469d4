"""Measures candidates on one slot: starts the measuring server, sends it work, restarts it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from tlmd.data.config import MeasureConfig
from tlmd.data.errors import Failed
from tlmd.data.types import Baseline, MeasureInput, Outcome, Status, TargetInfo, Task
from tlmd.measure.connection import Connection
from tlmd.measure.cores.core_plan import CoreLayout
from tlmd.measure.protocol import MeasureReply, MeasureRequest, Setup
from tlmd.measure.reference_tracker import ReferenceTracker
from tlmd.measure.server.verify import ReferenceStore
from tlmd.measure.submission import Submission

_log = logging.getLogger("tlmd.measure")

_GRACE_S = 60.0  # a server that is silent for this long after all its time limits is stuck
_ATTEMPTS = 2  # servers that may die with a candidate before it fails
_CLOSE_S = 30.0


class Measurer:
    """Measures on one slot. Thread-safe: any number of threads may submit.

    One thread of this object talks to the measuring server, which builds up to `builders` programs
    while one of them is timed. The server works for one target at a time; the first
    submission for another target restarts it. A candidate that fails has an outcome that says so.
    `Failed` is raised, also by futures, only where the server cannot be started, `RuntimeError`
    after `close`. Use it as a context manager or call `close`; if this process dies, the server
    ends too.
    """

    def __init__(
        self, cores: CoreLayout, cache_dir: Path, config: MeasureConfig | None = None
    ) -> None:
        config = config or MeasureConfig()
        self.cores = cores
        self.builders = config.builders or cores.builders
        self._config = config.model_copy(
            update={"build_on_run_cores": config.build_on_run_cores and not cores.shared}
        )
        self._cache = Path(cache_dir).absolute()
        self._cache.mkdir(parents=True, exist_ok=True)
        self._references = ReferenceTracker(ReferenceStore(self._cache))
        self._server: Connection | None = None
        self._target: TargetInfo | None = None
        self._tickets = itertools.count(1)
        self._submitted: deque[Submission] = deque()  # appended to by any thread
        self._waiting: deque[Submission] = deque()
        self._in_flight: dict[int, Submission] = {}
        self._lock = threading.Lock()  # after `close` has it, nothing is submitted
        self._closing = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="measurer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def server_pid(self) -> int | None:
        """The process id of the running server."""
        server = self._server
        return server.pid if server else None

    def start(self, target: TargetInfo) -> None:
        """Start the server for a target (about 3 s) before the first candidate; blocks."""
        self._submit(Submission(target)).result()

    def submit(self, task: Task, candidate: MeasureInput) -> Future[Outcome]:
        """Build, time and check one candidate; returns at once.

        If the task has no reference outputs, its unscheduled program is measured first. The future
        can be cancelled until the server has the candidate.
        """
        return self._submit(Submission(task.target, (task,), (candidate,), single=True))

    def measure(self, task: Task, candidates: Sequence[MeasureInput]) -> list[Outcome]:
        """The outcome of each candidate, in order; blocks."""
        futures = [self.submit(task, candidate) for candidate in candidates]
        return [future.result() for future in futures]

    def baseline(self, task: Task) -> Baseline:
        """Time the unscheduled program and keep its outputs as the task's reference; blocks.

        Seconds are infinite where it fails. Candidates of such a task are never verified.
        """
        (outcome,) = self._submit(Submission(task.target, (task,))).result()
        return Baseline(task.id, outcome.seconds, task.target.fingerprint)

    def compare(self, finalists: Sequence[tuple[Task, MeasureInput]]) -> tuple[Outcome, ...]:
        """Time verified candidates of one computation in interleaved rounds; blocks.

        One outcome each, in order. Empty where the comparison failed; the candidates themselves
        have not failed then.
        """
        if len(finalists) < 2:
            raise ValueError("a comparison needs at least two finalists")
        tasks, inputs = zip(*finalists, strict=True)
        outcomes: tuple[Outcome, ...] = self._submit(
            Submission(tasks[0].target, tasks, inputs)
        ).result()
        if len(outcomes) == len(finalists) and all(o.ok for o in outcomes):
            return outcomes
        _log.warning("no comparison for %s: %s", tasks[0].name, outcomes[0].detail)
        return ()

    def close(self) -> None:
        """End the server and everything it runs. Harmless when called again.

        Futures without a result raise `RuntimeError`.
        """
        with self._lock:
            self._closing.set()
        self._wake()
        self._thread.join(_CLOSE_S)

    def _submit(self, submission: Submission) -> Future[Any]:
        with self._lock:
            if self._closing.is_set():
                raise RuntimeError("the measurer is closed")
            self._submitted.append(submission)
        self._wake()
        return submission.future

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the thread has ended and closed the pipe
            os.write(self._wake_write, b"\0")

    # what follows runs in the measurer's own thread

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                while (submission := self._next()) is not None:
                    self._send(submission)
                self._receive()
            except Exception as error:
                self._fail_all(error)
        if self._server is not None:
            self._server.close()
        self._fail_all(RuntimeError("the measurer is closed"))
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _next(self) -> Submission | None:
        """The next submission for the server; None where it has enough, or there is none."""
        while self._submitted:
            self._waiting.append(self._submitted.popleft())
        if not self._waiting or len(self._in_flight) >= self.builders:
            return None
        first = self._waiting[0]
        # The work of a server that died goes alone, to find out which candidate killed it.
        alone = first.attempts > 0 or any(s.attempts > 1 for s in self._in_flight.values())
        if self._in_flight and (alone or first.target != self._target):
            return None
        self._use(first.target)
        for submission in self._waiting:
            if submission.target != self._target:
                return None
            task = submission.task
            if task and len(submission.inputs) == 1 and self._references.needs_baseline(task):
                if self._references.is_in_flight(task):
                    continue
                return Submission(submission.target, (task,))
            self._waiting.remove(submission)
            # A cancelled one is skipped; one that was sent before is running already.
            if submission.attempts or submission.future.set_running_or_notify_cancel():
                return submission
            return self._next()
        return None

    def _use(self, target: TargetInfo) -> None:
        """Have a server for `target`. Raises `Failed`."""
        if target != self._target:
            if self._server is not None:
                self._server.close()
            self._server, self._target = None, target
            self._references.reset()
        if self._server is None:
            cores, config = self.cores, self._config.model_dump_json()
            setup = Setup(target, cores.run, cores.build, str(self._cache), config)
            self._server = Connection(setup, self._closing)

    def _send(self, submission: Submission) -> None:
        tasks, server = submission.tasks, self._server
        if not tasks or server is None:
            submission.finish(())
            return
        if submission.is_baseline:
            self._references.started(tasks[0])
        ticket = next(self._tickets)
        submission.attempts += 1
        self._in_flight[ticket] = submission
        with contextlib.suppress(OSError):  # `_receive` notices the end of the stream and recovers
            ids = tuple(task.id for task in tasks)
            server.send_request(tasks, MeasureRequest(ticket, ids, submission.inputs))

    def _receive(self) -> None:
        """Wait for replies or submissions; restart a server that is stuck."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._server is not None:
            poll.register(self._server.fileno, select.POLLIN)
        ready = poll.poll(self._silence_s * 1e3 if self._in_flight else None)
        if not ready:
            self._recover()
        for fd, _ in ready:
            if fd == self._wake_read:
                os.read(fd, 1 << 16)
            elif self._server is not None and (replies := self._server.read()) is not None:
                for reply in filter(lambda r: isinstance(r, MeasureReply), replies):
                    self._finish(reply)
            else:
                self._recover()

    @property
    def _silence_s(self) -> float:
        """The longest time for which a healthy server with work may be silent."""
        run_s = max(self._config.run_timeout, self._config.baseline_timeout)
        waits_s = self._config.build_timeout + self._config.wait_quiet + _GRACE_S
        return waits_s + 2 * self.builders * run_s

    def _finish(self, reply: MeasureReply) -> None:
        submission = self._in_flight.pop(reply.ticket, None)
        if submission is None or submission.task is None:
            return
        if submission.is_baseline:
            self._references.finished(submission.task, reply.outcomes[0])
        self._references.check(submission.task, reply.outcomes[0])
        submission.finish(reply.outcomes)

    def _recover(self) -> None:
        """The server died: what was in flight goes to the next one, or fails the second time."""
        code = self._server.kill() if self._server else None
        self._server = None
        _log.warning("the measuring server died (exit code %s)", code)
        interrupted, self._in_flight = self._in_flight, {}
        for ticket, submission in reversed(interrupted.items()):
            if submission.attempts < _ATTEMPTS:
                if submission.task is not None and submission.is_baseline:
                    self._references.lost(submission.task)
                self._waiting.appendleft(submission)
                continue
            detail = f"the measuring server died twice with it (exit code {code})"
            self._in_flight[ticket] = submission
            self._finish(MeasureReply(ticket, (Outcome(Status.CRASH, detail=detail),)))

    def _fail_all(self, error: Exception) -> None:
        """Every submission raises `error`; the next one starts a new server."""
        if not isinstance(error, Failed | RuntimeError):
            _log.exception("measuring failed")
        failed = [*self._in_flight.values(), *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        while self._submitted:
            failed.append(self._submitted.popleft())
        self._references.reset()
        for submission in failed:
            if not submission.future.done():
                submission.future.set_exception(error)
