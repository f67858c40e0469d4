"""What the benchmarks of the pipeline share: a cluster, its steps, and counts of the answers.

`hot_swap`, `overlap` and `scale` start real actors with it, and add what differs: orders that are
sent by hand, two alternating loops, or simulated slots (`benchmarks.simulated`).
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from actors import session
from tlmd.data.types import Status
from tlmd.pipeline.orders import Event, MeasureOrder, OrderDone, Trained, WorkerJoined, WorkerLeft

if TYPE_CHECKING:
    from actors.cluster import Cluster

_P = ParamSpec("_P")
_T = TypeVar("_T")

PATIENCE_S = 300.0
"""How long a driver waits for workers and answers by default."""
_STEP_S = 0.2


@dataclass
class AnswerCounts:
    """What the slots and the trainer have answered."""

    measured: int = 0
    """Candidates that have an outcome."""
    failed: int = 0
    timed_s: float = 0.0
    """Seconds in which programs ran."""
    training_rounds: int = 0
    training_steps: int = 0

    def add(self, event: Event) -> None:
        """Count an answer; other events change nothing."""
        if not isinstance(event, OrderDone):
            return
        if isinstance(event.order, MeasureOrder) and isinstance(event.answer, tuple):
            self.measured += len(event.answer)
            self.failed += sum(outcome.status is not Status.OK for outcome in event.answer)
            self.timed_s += sum(outcome.timing.run for outcome in event.answer)
        elif isinstance(event.answer, Trained):
            self.training_rounds += 1
            self.training_steps += event.answer.steps


class Driver:
    """Steps a pipeline or a bare cluster, and counts the answers. Use it from one thread only.

    `wait(seconds)` waits for events, at most so long, and returns them: `Pipeline.step` or
    `Cluster.wait`. Subclasses handle events in `on_event`.
    """

    def __init__(self, wait: Callable[[float], list[Event]], step_s: float = _STEP_S) -> None:
        self.counts = AnswerCounts()
        self.steps = 0
        self.workers: set[str] = set()
        """Names of the living workers that have joined."""
        self._wait = wait
        self._step_s = step_s

    def step(self) -> None:
        """Wait for events once and handle them."""
        for event in self._wait(self._step_s):
            self.on_event(event)
        self.steps += 1

    def on_event(self, event: Event) -> None:
        """Count an event."""
        if isinstance(event, WorkerJoined):
            self.workers.add(event.worker.name)
        elif isinstance(event, WorkerLeft):
            self.workers.discard(event.worker)
        self.counts.add(event)

    def run(self, seconds: float) -> None:
        """Step for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.step()

    def until(self, done: Callable[[], bool], what: str, patience: float = PATIENCE_S) -> None:
        """Step until `done`. Ends the benchmark where `what` takes longer than `patience`."""
        end = time.monotonic() + patience
        while not done():
            if time.monotonic() > end:
                raise SystemExit(f"{what}: not within {patience:.0f} s")
            self.step()

    def wait_for_workers(self, count: int) -> None:
        """Step until so many workers have joined."""
        self.until(lambda: len(self.workers) >= count, f"{count} workers join")


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """An empty directory that is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        yield Path(scratch)


@contextmanager
def running_cluster(settings: session.Settings) -> Iterator[Cluster]:
    """Start a cluster; its workers join while a driver steps. In the end all of it is stopped."""
    session.prepare(settings)
    from actors.cluster import Cluster  # it imports Ray, which reads the environment then

    with closing(Cluster(settings)) as cluster:
        cluster.start()
        yield cluster


def in_own_process(
    cores: frozenset[int], log: Path | None, work: Callable[_P, _T], *args: _P.args, **kw: _P.kwargs
) -> _T:
    """What `work` returns in a new process on `cores`, whose children inherit them.

    Ray needs this: it keeps the token of the first instance that a process starts. The process
    writes its standard error to `log`, where there is one.
    """
    usable = os.sched_getaffinity(0)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, _write_stderr_to, (log,)) as pool:
        os.sched_setaffinity(0, cores)
        try:
            future = pool.submit(work, *args, **kw)  # starts the process
        finally:
            os.sched_setaffinity(0, usable)
        try:
            return future.result()
        except BrokenProcessPool:
            text = log.read_text()[-2000:] if log is not None and log.exists() else ""
            raise SystemExit(f"the benchmark's process died: {text}") from None


def _write_stderr_to(log: Path | None) -> None:
    if log is not None:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
