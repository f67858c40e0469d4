"""A measurer that several threads may use at once: their jobs flow through it without a gap.

`Measurer` builds some jobs while one is timed; a caller that waited for its own jobs before handing
over the next ones would leave it idle in between. Here one thread feeds it from a queue.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

from tlmd.measure.client import Job, Measurer
from tlmd.types import Baseline, Candidate, Outcome, TargetInfo, Task

_CLOSE_S = 30.0


class SharedMeasurer:
    """Measures for any number of threads; `make` builds a measurer for a target.

    Programs of one target are measured at a time; another target's measurer is started when its
    turn comes. After `close` every call raises `RuntimeError`.
    """

    def __init__(self, make: Callable[[TargetInfo], Measurer]) -> None:
        self._make = make
        self._jobs: queue.Queue[tuple[Job, Future[Outcome]] | None] = queue.Queue()
        self._turn = threading.Lock()  # the measurer itself is for one thread only
        self._measurer: Measurer | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._feed, name="feed", daemon=True)
        self._thread.start()

    def start(self, target: TargetInfo) -> None:
        """Start the measurer of a target ahead of its first job. Raises `Failed`."""
        with self._turn:
            self._use(target).start()

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcome of each job, in order; blocks until all are there. Raises `Failed`."""
        futures: list[Future[Outcome]] = [Future() for _ in jobs]
        for pair in zip(jobs, futures, strict=True):
            if self._closed:
                raise RuntimeError("the measurer is closed")
            self._jobs.put(pair)
        return [future.result() for future in futures]

    def baseline(self, task: Task) -> Baseline:
        """Time the unscheduled program of a task; blocks. Raises `Failed`."""
        (outcome,) = self.measure([Job.baseline(task)])
        return Baseline(task.id, outcome.seconds, task.target.fingerprint)

    def final(self, task: Task, candidates: Sequence[Candidate]) -> tuple[Outcome, ...]:
        """`Measurer.final`, when nothing else is being measured."""
        with self._turn:
            return self._use(task.target).final(task, candidates)

    def close(self) -> None:
        """End the measurer and its server; jobs in flight raise."""
        self._closed = True
        self._jobs.put(None)
        if self._measurer is not None:
            self._measurer.close()
        self._thread.join(_CLOSE_S)

    def _use(self, target: TargetInfo) -> Measurer:
        if self._measurer is None or self._measurer.target != target:
            if self._measurer is not None:
                self._measurer.close()
            self._measurer = self._make(target)
        return self._measurer

    def _feed(self) -> None:
        waiting: dict[int, Future[Outcome]] = {}
        while (first := self._jobs.get()) is not None:
            with self._turn:
                try:
                    stream = self._stream(first, waiting)
                    for job, outcome in self._use(first[0].task.target).measure(stream):
                        waiting.pop(id(job)).set_result(outcome)
                except Exception as error:
                    for future in waiting.values():
                        future.set_exception(error)
                    waiting.clear()
            if self._closed:
                break
        self._refuse()

    def _stream(
        self, first: tuple[Job, Future[Outcome]], waiting: dict[int, Future[Outcome]]
    ) -> Iterator[Job | None]:
        """Jobs of one target as they come; None while there is none; ends when all are done."""
        pair: tuple[Job, Future[Outcome]] | None = first
        while pair is not None:
            job, future = pair
            if job.task.target != first[0].task.target:
                self._jobs.put(pair)  # another target's turn comes when this one's jobs are done
                return
            waiting[id(job)] = future
            yield job
            while (pair := self._next()) is None and waiting and not self._closed:
                yield None

    def _next(self) -> tuple[Job, Future[Outcome]] | None:
        try:
            return self._jobs.get_nowait()
        except queue.Empty:
            return None

    def _refuse(self) -> None:
        while (pair := self._next()) is not None:
            pair[1].set_exception(RuntimeError("the measurer is closed"))
