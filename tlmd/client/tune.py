"""`tlmd tune`: one model, from the file to the compiled result.

This process lowers the model and sends its tasks to the daemon of the state directory. If no daemon
runs there, it starts a private one, which ends with the job. When the daemon has measured the
tasks, this process compiles the model with the best programs.
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

from tlmd.client import export, lifecycle
from tlmd.client.connection import Daemon, Job
from tlmd.client.export import TuneResult
from tlmd.client.tune_request import TuneRequest
from tlmd.config import SHIPPED, Config
from tlmd.errors import BadInput, Failed, Interrupted, NoDaemon
from tlmd.measure.cores import CoreLayout, plan_slots
from tlmd.model import checkpoint as checkpoints
from tlmd.records.store import RecordStore
from tlmd.space import target as targets
from tlmd.state_dir import make_state_dir
from tlmd.workloads import frontends
from tlmd.workloads.corpus import save_tasks
from tlmd.workloads.preparation import LoweredModel, lower_source

__all__ = ["Display", "TuneResult", "run"]
_END_S = 90.0


@dataclass
class Display:
    """Functions that a running job calls to show its progress. The defaults show nothing."""

    stage: Callable[[str], None] = field(default=lambda text: None)
    """Called with the name of a stage when it begins."""

    progress: Callable[[Any], None] = field(default=lambda progress: None)
    """Called with a `pipeline.Progress`."""

    stopping: Callable[[], None] = field(default=lambda: None)
    """Called from a signal handler when the user asks to stop."""


def run(request: TuneRequest, config: Config, display: Display | None = None) -> TuneResult:
    """Tune the model of `request` and return its `TuneResult`.

    After SIGINT or SIGTERM the batch in flight is finished and everything measured is kept; after a
    second signal the job ends at once. Raises `BadInput` if an argument cannot be used, and
    `Failed` if nothing can be exported.
    """
    display = display or Display()
    started_at = time.monotonic()
    layout = plan_slots(config.measure.slots, run=config.measure.run_cores or None)[0]
    target = targets.resolve(request.target, len(layout.run))
    frontends.check(request.spec.name)
    export.check_out(request.out)
    state_dir = make_state_dir(request.state_dir).absolute()
    running = lifecycle.running(state_dir)
    with _PrivateDaemon(request, config, running) as private:
        with _away_from_run_cores(layout, running is not None) as leave_run_cores:
            private.launch()
            display.stage("loading the model")
            source = frontends.load(request.spec)
            display.stage("lowering it to tasks")
            prepared = lower_source(request.spec, source, target)
            display.stage("starting the daemon" if running is None else "submitting the job")
            leave_run_cores()
            daemon = running or private.daemon()
            job = _submit(request, config, daemon, prepared)
            stopped = _follow(job, display)
            private.ask_to_end()  # which takes seconds; the compiling goes on meanwhile
            with RecordStore(state_dir / "records.sqlite", read_only=True) as store:
                states = export.read_states(store, prepared.tasks)
            if stopped:
                return export.interrupted(request.spec.name, states, started_at)
            display.stage("compiling and timing the whole model")
            return export.deliver(
                prepared, states, state_dir, request.out, started_at, before_timing=private.end
            )


def _submit(request: TuneRequest, config: Config, daemon: Daemon, prepared: LoweredModel) -> Job:
    path = daemon.state_dir / "jobs" / f"{uuid.uuid4().hex[:12]}.tasks"
    save_tasks(path, prepared.tasks)
    return daemon.submit(
        request.spec.name,
        input_shape=request.spec.input_shapes,
        target=request.target,
        trials=config.tune.trials,
        time_budget=request.time_budget,
        tasks=str(path),
    )


def _follow(job: Job, display: Display) -> bool:
    """Wait for the job; return whether the user stopped it. Raises `Failed` if the job failed."""
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
        raise Failed("the daemon ended before the job; see its log; the same command continues")
    return False


@contextmanager
def _stoppable(job: Job, display: Display) -> Iterator[threading.Event]:
    """Cancel the job at the first SIGINT or SIGTERM; the earlier handler gets the second one."""
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
        return  # the daemon has ended, and the job with it


class _PrivateDaemon:
    """A daemon for this job only, which ends with the block. Does nothing if a daemon runs."""

    def __init__(self, request: TuneRequest, config: Config, running: Daemon | None) -> None:
        self._request = request
        self._needed = running is None
        self._process: subprocess.Popen[bytes] | None = None
        if self._needed:
            _check_checkpoint(config)

    def __enter__(self) -> _PrivateDaemon:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def launch(self) -> None:
        """Start the daemon in the background, if one is needed."""
        if self._needed:
            r = self._request
            self._process = lifecycle.launch(r.state_dir, r.config, r.flags, "private")

    def daemon(self) -> Daemon:
        """Wait until the daemon answers, and return it."""
        assert self._process is not None
        return lifecycle.wait_for(self._request.state_dir, self._process)

    def ask_to_end(self) -> None:
        """Let the daemon finish work in flight and end, and return at once."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()  # the daemon ends when its standard input ends

    def end(self) -> None:
        """Let the daemon end, and wait until all its processes have ended."""
        self.ask_to_end()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(_END_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt, Interrupted):
            process.kill()
            process.wait()
            raise


def _check_checkpoint(config: Config) -> None:
    """Report a damaged checkpoint before the daemon starts. Raises `BadInput`."""
    directory = Path(config.generate.checkpoint or SHIPPED)
    try:
        checkpoints.read(directory)
    except BadInput:
        raise
    except OSError as error:
        raise BadInput(f"cannot read the checkpoint {directory}: {error.strerror}") from error


@contextmanager
def _away_from_run_cores(layout: CoreLayout, now: bool) -> Iterator[Callable[[], None]]:
    """Keep this process off the run cores: from `now`, or from the call of the yielded function."""
    import torch

    before, threads = os.sched_getaffinity(0), torch.get_num_threads()

    def leave_run_cores() -> None:
        torch.set_num_threads(max(1, len(layout.build)))
        for thread in threading.enumerate():
            if thread.native_id is not None:
                os.sched_setaffinity(thread.native_id, set(layout.build))

    if now:
        leave_run_cores()
    try:
        yield leave_run_cores
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)
