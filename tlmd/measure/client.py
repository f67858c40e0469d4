"""The measuring side that others hold: starts the server, streams jobs through it, mends it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tlmd.measure.connection import Connection
from tlmd.measure.cores import CoreLayout
from tlmd.measure.protocol import NO_REFERENCE, Final, Limits, Load, Reply, Setup, Work
from tlmd.measure.verify import ReferenceStore
from tlmd.types import Baseline, Candidate, Outcome, Status, TargetInfo, Task

_log = logging.getLogger("tlmd.measure")

_PATIENCE_S = 60.0  # of silence on top of what all limits add up to, then the server is stuck
_LOADED_TASKS = 128  # kept parsed in the server
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Job:
    """A candidate to measure.

    ``trace`` is the JSON text of ``[instructions, decisions]`` before the postprocessors; an empty
    one is the unscheduled program. ``incumbent_s`` is the drift-corrected best time of the task so
    far, if there is one.

    Example: ``Job(task, candidate, "[[...], [...]]", incumbent_s=1.6e-3)``.
    """

    task: Task
    candidate: Candidate
    trace: str
    incumbent_s: float | None = None

    @staticmethod
    def baseline(task: Task) -> Job:
        """The unscheduled program, whose outputs become the task's reference."""
        return Job(task, Candidate(task.id, 0, ()), "")


@dataclass
class _Flight:
    """A request that has no answer yet; ``attempts`` counts the servers it was sent to."""

    task: Task
    work: Work | Final
    attempts: int = 0
    sent: bool = False


class Measurer:
    """Measures candidates on one slot; not thread-safe.

    With `lend`, children build on the run cores too while nothing is timed there; they are moved
    away before a timing begins. Errors of candidates are outcomes; `Failed` is raised only when the
    server cannot be started. Use it as a context manager or call `close`; should this process die,
    the server follows.
    """

    def __init__(
        self,
        target: TargetInfo,
        cores: CoreLayout,
        cache_dir: Path,
        limits: Limits | None = None,
        builders: int = 2,
        lend: bool = False,
    ) -> None:
        self.target = target
        self.cores = cores
        self.limits = limits or Limits()
        self.builders = 1 if cores.shared else max(1, builders)
        self._lend = lend and not cores.shared
        self._cache = Path(cache_dir).absolute()
        self._cache.mkdir(parents=True, exist_ok=True)
        self._server: Connection | None = None
        self._closing = threading.Event()
        self._reference_s = 0.0
        self._tickets = 0
        self._flights: dict[int, _Flight] = {}
        self._done: dict[int, tuple[Outcome, ...]] = {}
        self._abandoned: set[int] = set()
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._store = ReferenceStore(self._cache)
        self._referenced: set[str] = set()
        self._unverifiable: set[str] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def server_pid(self) -> int | None:
        """The process id of the running server."""
        return self._server.pid if self._server else None

    def start(self) -> None:
        """Start the server (about 3 s); without it the first job does. Raises `Failed`."""
        if self._server is None:
            self._closing.clear()
            self._launch()

    def baseline(self, task: Task) -> Baseline:
        """Time the unscheduled program and keep its outputs as the task's reference.

        Seconds are infinite where it fails; candidates of such a task are never verified.
        """
        ((_, outcome),) = self.measure([Job.baseline(task)])
        return Baseline(task.id, outcome.seconds, self.target.fingerprint)

    def measure(self, jobs: Iterable[Job | None]) -> Iterator[tuple[Job, Outcome]]:
        """Measure `jobs` and yield each as it finishes, not in order.

        Jobs are pulled lazily, at most `builders` ahead; None says that there is no further one
        yet, which is allowed only while some are in flight. A task without a reference gets its
        baseline first. Closing the iterator early abandons what is in flight.
        """
        source = iter(jobs)
        mine: dict[int, Job] = {}
        exhausted = False
        try:
            while True:
                while not exhausted and len(mine) < self.builders:
                    try:
                        job = next(source)
                    except StopIteration:
                        exhausted = True
                        break
                    if job is None:
                        break
                    if job.trace:
                        self._need_reference(job.task)
                    work = Work(self._ticket(), job.task.id, job.trace, job.incumbent_s)
                    mine[self._submit(job.task, work)] = job
                if not mine:
                    return
                ticket, (outcome,) = self._take(mine.keys())
                job = mine.pop(ticket)
                if not job.trace:
                    self._refer(job.task, outcome)
                if outcome.detail == NO_REFERENCE:  # it was damaged, or made room for others
                    self._referenced.discard(job.task.id)
                yield job, outcome
        finally:
            self._abandon(mine)

    def final(self, task: Task, candidates: Sequence[Candidate]) -> tuple[Outcome, ...]:
        """Time verified candidates of a task against each other; blocks.

        One outcome each, in order; none where it failed, which says nothing about them.
        """
        ticket = self._submit(task, Final(self._ticket(), task.id, tuple(candidates)))
        _, outcomes = self._take({ticket})
        if len(outcomes) == len(candidates) and all(o.ok for o in outcomes):
            return outcomes
        _log.warning("no final for %s: %s", task.name, outcomes[0].detail)
        return ()

    def close(self) -> None:
        """End the server and whatever it runs; harmless when called again.

        From another thread it ends a `start` that is still going on, which then raises `Failed`.
        """
        self._closing.set()
        if self._server is not None:
            self._server.close()
            self._server = None
        self._flights.clear()
        self._done.clear()
        self._abandoned.clear()

    def _need_reference(self, task: Task) -> None:
        if task.id in self._referenced or task.id in self._unverifiable:
            return
        if self._store.has(task.id):
            self._referenced.add(task.id)
        else:
            self.baseline(task)

    def _refer(self, task: Task, outcome: Outcome) -> None:
        """A baseline is known: with it there is a reference, or never one."""
        if outcome.ok:
            self._referenced.add(task.id)
        else:
            self._unverifiable.add(task.id)
            _log.warning("no baseline for %s: %s %s", task.name, outcome.status, outcome.detail)

    def _abandon(self, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            if ticket in self._flights:
                self._abandoned.add(ticket)
            self._done.pop(ticket, None)

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _submit(self, task: Task, work: Work | Final) -> int:
        self.start()
        while len(self._flights) >= self.builders:
            self._pump()
        self._flights[work.ticket] = _Flight(task, work)
        self._dispatch()
        return work.ticket

    def _take(self, tickets: Iterable[int]) -> tuple[int, tuple[Outcome, ...]]:
        """The first of `tickets` that is done."""
        while True:
            for ticket in tickets:
                if ticket in self._done:
                    return ticket, self._done.pop(ticket)
            self._pump()

    def _dispatch(self) -> None:
        """Send what is unsent. After a server died, its jobs go alone, to tell which one it was."""
        waiting = [f for f in self._flights.values() if not f.sent]
        suspects = [f for f in self._flights.values() if f.attempts and not f.sent]
        flying = [f for f in self._flights.values() if f.sent]
        if suspects or any(f.attempts > 1 for f in flying):
            waiting = suspects[:1] if not flying else []
        if (server := self._server) is None:
            return
        for flight in waiting:
            flight.sent = True
            flight.attempts += 1
            with contextlib.suppress(OSError):  # `_pump` sees the end of the stream and recovers
                self._load(server, flight.task)
                server.send(flight.work)

    def _load(self, server: Connection, task: Task) -> None:
        if task.id in self._loaded:
            self._loaded.move_to_end(task.id)
            return
        forget = ""
        if len(self._loaded) >= _LOADED_TASKS:
            forget = self._loaded.popitem(last=False)[0]
        self._loaded[task.id] = None
        server.send(Load(task, forget))

    def _pump(self) -> None:
        """Receive one reply, or mend the server."""
        message = self._server.receive(self._silence_s) if self._server else None
        if not isinstance(message, Reply):
            self._recover()
        elif self._flights.pop(message.ticket, None):
            self._finish(message.ticket, message.outcomes)
        self._dispatch()

    @property
    def _silence_s(self) -> float:
        """The longest a healthy server can be silent while something is in flight."""
        run_s = max(self.limits.run_s, self.limits.baseline_s)
        return self.limits.build_s + 2 * self.builders * run_s + _PATIENCE_S

    def _finish(self, ticket: int, outcomes: tuple[Outcome, ...]) -> None:
        if ticket in self._abandoned:
            self._abandoned.discard(ticket)
        else:
            self._done[ticket] = outcomes

    def _recover(self) -> None:
        """Start a new server and send it what the old one had; fail what killed two."""
        code = self._server.kill() if self._server else None
        self._server = None
        _log.warning("the measuring server died (exit code %s); starting another", code)
        for ticket, flight in list(self._flights.items()):
            if flight.sent and flight.attempts >= _ATTEMPTS:
                del self._flights[ticket]
                detail = f"the measuring server died twice with it (exit code {code})"
                self._finish(ticket, (Outcome(Status.CRASH, detail=detail),))
            flight.sent = False
        self._launch()

    def _launch(self) -> None:
        cache, run, build = str(self._cache), self.cores.run, self.cores.build
        setup = Setup(self.target, run, build, cache, self.limits, self._reference_s, self._lend)
        self._loaded.clear()
        self._server = Connection(setup, self._closing)
        # Kept over restarts, so that drift always compares with the same moment.
        self._reference_s = self._server.reference_s
