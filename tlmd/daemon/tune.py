"""`tlmd tune`: one model from end to end.

The model is lowered here and its tasks go to the daemon of the state directory, or to a private one
that ends with the job; what that has measured is compiled here in the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tlmd.config import SHIPPED, Config
from tlmd.daemon import delivery, lifecycle
from tlmd.daemon.client import Daemon, Job
from tlmd.daemon.delivery import Prepared, TuneResult
from tlmd.daemon.state import make_state_dir
from tlmd.errors import BadInput, Failed, Interrupted, NoDaemon
from tlmd.measure.cores import CoreLayout, plan_slots
from tlmd.model import checkpoint as checkpoints
from tlmd.records.store import RecordStore
from tlmd.space import target as targets
from tlmd.types import Shapes
from tlmd.workloads import frontends
from tlmd.workloads.corpus import save_tasks

__all__ = ["Display", "Request", "TuneResult", "run"]
_END_S = 90.0


@dataclass(frozen=True)
class Request:
    """What `tlmd tune` was asked for. `time_budget` is seconds for measuring, None for no limit.

    `config` and `flags` are what a private daemon is started with.
    """

    model: str
    input_shapes: Shapes | None = None
    target: str = "native"
    time_budget: float | None = None
    out: Path | None = None
    state_dir: Path = Path()
    config: Path | None = None
    flags: dict[str, Any] = field(default_factory=dict)


@dataclass
class Display:
    """What a job tells while it runs; the defaults say nothing. Progress is `pipeline.Progress`."""

    stage: Callable[[str], None] = field(default=lambda text: None)
    progress: Callable[[Any], None] = field(default=lambda progress: None)
    stopping: Callable[[], None] = field(default=lambda: None)


def run(request: Request, config: Config, display: Display | None = None) -> TuneResult:
    """Tune `request.model`; see `TuneResult`.

    Raises `BadInput` for what the user gave and `Failed` where nothing can be exported. SIGINT and
    SIGTERM finish the batch in flight and keep everything; a second one ends at once.
    """
    display = display or Display()
    begin = time.monotonic()
    layout = plan_slots(config.measure.slots, run=config.measure.run_cores or None)[0]
    target = targets.resolve(request.target, len(layout.run))
    frontends.check(request.model)
    delivery.check_out(request.out)
    state_dir = make_state_dir(request.state_dir).absolute()
    running = lifecycle.running(state_dir)
    with _Private(request, config, running) as private:
        with _yielding(layout, running is not None) as give_way:
            display.stage("loading the model")
            source = frontends.load_model(request.model, request.input_shapes)
            private.launch()
            display.stage("lowering it to tasks")
            prepared = delivery.lower(request.model, request.input_shapes, source, target)
            display.stage("starting the daemon" if running is None else "handing over")
            give_way()
            daemon = running or private.daemon()
            job = _submit(request, config, daemon, prepared)
            stopped = _follow(job, display)
            private.end()
            with RecordStore(state_dir / "records.sqlite", read_only=True) as store:
                states = delivery.read_states(store, prepared.tasks)
            if stopped:
                return delivery.interrupted(request.model, states, begin)
            display.stage("compiling and timing the whole model")
            return delivery.deliver(prepared, states, state_dir, request.out, begin)


def _submit(request: Request, config: Config, daemon: Daemon, prepared: Prepared) -> Job:
    path = daemon.state_dir / "jobs" / f"{uuid.uuid4().hex[:12]}.tasks"
    save_tasks(path, prepared.tasks)
    return daemon.submit(
        request.model,
        input_shape=request.input_shapes,
        target=request.target,
        trials=config.tune.trials,
        time_budget=request.time_budget,
        tasks=str(path),
    )


def _follow(job: Job, display: Display) -> bool:
    """Wait for the job; whether the user stopped it. Raises `Failed` where it failed."""
    last: dict[str, Any] = {"state": "running", "reason": ""}
    with _stoppable(job, display) as stop:
        try:
            for last in job.daemon.follow(job.id):
                if last.get("progress") and last["state"] == "running":
                    display.progress(SimpleNamespace(**last["progress"]))
        except NoDaemon:
            if not stop.is_set():
                raise
    if stop.is_set() or last["state"] == "cancelled":
        return True
    if last["state"] == "failed":
        raise Failed(last["reason"])
    if last["state"] != "done":
        raise Failed("the daemon ended before the job did; see its log, the same command continues")
    return False


@contextmanager
def _stoppable(job: Job, display: Display) -> Iterator[threading.Event]:
    """SIGINT and SIGTERM cancel the job once; the second signal acts as it would have."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, _frame: Any) -> None:
        stop.set()
        display.stopping()
        threading.Thread(target=_cancel, args=(job,), daemon=True).start()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cancel(job: Job) -> None:
    try:
        job.cancel()
    except (NoDaemon, Failed):
        return  # it is gone, and the job with it


class _Private:
    """A daemon for this one job, or nothing where one runs already. Ends with the block."""

    def __init__(self, request: Request, config: Config, running: Daemon | None) -> None:
        self._request = request
        self._needed = running is None
        self._process: subprocess.Popen[bytes] | None = None
        if self._needed:
            _check_checkpoint(config)

    def __enter__(self) -> _Private:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def launch(self) -> None:
        """Start it in the background, where one is needed."""
        if self._needed:
            r = self._request
            self._process = lifecycle.launch(r.state_dir, r.config, r.flags, "private")

    def daemon(self) -> Daemon:
        """The daemon, when it answers."""
        assert self._process is not None
        return lifecycle.wait_for(self._request.state_dir, self._process)

    def end(self) -> None:
        """Let it finish what is in flight, and wait until it and all its processes are gone."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()  # which it takes as a sign
        try:
            process.wait(_END_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt, Interrupted):
            process.kill()
            process.wait()
            raise


def _check_checkpoint(config: Config) -> None:
    """A damaged checkpoint is better found before anything is started."""
    directory = Path(config.generate.checkpoint or SHIPPED)
    try:
        checkpoints.read(directory)
    except BadInput:
        raise
    except OSError as error:
        raise BadInput(f"cannot read the checkpoint {directory}: {error.strerror}") from error


@contextmanager
def _yielding(layout: CoreLayout, now: bool) -> Iterator[Callable[[], None]]:
    """Keep this process off the run cores: `now`, or when the yielded function is called."""
    import torch

    before, threads = os.sched_getaffinity(0), torch.get_num_threads()

    def give_way() -> None:
        torch.set_num_threads(max(1, len(layout.build)))
        for thread in threading.enumerate():
            if thread.native_id is not None:
                os.sched_setaffinity(thread.native_id, set(layout.build))

    if now:
        give_way()
    try:
        yield give_way
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)
