"""`tlmd tune`: one model, from the file to the compiled result.

A process of its own holds the model (`model_process`). When the model works, its tasks go to the
daemon of the state directory. If no daemon runs there, a private one starts meanwhile, which ends
with the job. When the tasks are measured, the model's process compiles it with the best programs.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tlmd.client import lifecycle
from tlmd.client.connection import Daemon
from tlmd.client.display.progress import outlook, progress_of
from tlmd.client.job import Job
from tlmd.client.model_process import ModelProcess
from tlmd.client.tune_request import TuneRequest
from tlmd.data.config import SHIPPED, Config
from tlmd.data.errors import BadInput, Failed, Interrupted, NoDaemon
from tlmd.data.job_request import JobRequest
from tlmd.data.state_dir import make_state_dir
from tlmd.export.tune_result import TuneResult, check_out
from tlmd.measure.cores.core_plan import CARD, plan_slots
from tlmd.models import frontends
from tlmd.pipeline.tuning_jobs import Progress
from tlmd.processes import scratch
from tlmd.processes.children import ending_signals
from tlmd.tlm import checkpoint as checkpoints

__all__ = ["Display", "TuneResult", "run"]
_END_S = 90.0
_MEASURE_S, _FIXED_S = 0.4, 25.0  # one measurement; starting, compiling and timing the model


@dataclass
class Display:
    """Functions that a running job calls to show its progress. The defaults show nothing."""

    stage: Callable[[str], None] = field(default=lambda text: None)
    """Called with the name of a stage when it begins."""

    tell: Callable[[str], None] = field(default=lambda text: None)
    """Called with a sentence about the plan of the job and its time; at the end with a sentence
    about the gain of more trials."""

    progress: Callable[[Progress], None] = field(default=lambda progress: None)
    """Called now and then while candidates are measured."""

    stopping: Callable[[], None] = field(default=lambda: None)
    """Called from a signal handler when the user asks to stop."""


def run(request: TuneRequest, config: Config, display: Display | None = None) -> TuneResult:
    """Tune the model of `request` and return its `TuneResult`.

    After SIGINT, SIGTERM or SIGHUP the batch in flight is finished and everything measured is kept;
    after a second signal the job ends at once. Raises `BadInput` if an argument or the model cannot
    be used, and `Failed` if nothing can be exported.
    """
    display = display or Display()
    started_at = time.monotonic()
    job_request = request.job
    frontends.check(job_request.name)
    check_out(request.out)
    if CARD in job_request.target:
        raise BadInput(
            "tlmd tune compares models on CPUs; for a CUDA card set measure.cards, then "
            f"`tlmd start`, `tlmd submit {job_request.name} --target cuda` and `tlmd export`"
        )
    state_dir = make_state_dir(request.state_dir).absolute()
    if job_request.trials == 0:
        return _compile(request, config, state_dir, display, started_at)
    running = lifecycle.running(state_dir)
    cores = config.measure.run_cores
    if running is not None:
        cores = lifecycle.check_cores(running, cores)
    layout = plan_slots(config.measure.slots, run=cores or None)[0]
    log = state_dir / "logs" / "tune.log"
    with (
        _PrivateDaemon(request, config, running) as private,
        ModelProcess(job_request.model_spec, config, log) as model,
    ):
        private.launch()
        if running is None and (told := scratch.note()):
            display.tell(told)
        tasks = state_dir / "jobs" / f"{uuid.uuid4().hex[:12]}.tasks"
        accepted = model.accept(
            job_request.target, layout, running is not None, tasks, display.stage
        )
        _tell_notes(display, job_request, accepted)
        if not accepted["tasks"]:
            private.ask_to_end()
            return model.deliver(state_dir, request.out, started_at, False, private.end)
        display.tell(_plan(accepted, job_request))
        display.stage("starting the daemon" if running is None else "submitting the job")
        daemon = running or private.daemon()
        job = daemon.submit_request(job_request.model_copy(update={"tasks": str(tasks)}))
        stopped = _follow(job, display)
        private.ask_to_end()  # which takes seconds; the compiling goes on meanwhile
        if not stopped:
            display.stage("compiling and timing the whole model")
        return model.deliver(state_dir, request.out, started_at, stopped, private.end)


def _compile(
    request: TuneRequest, config: Config, state_dir: Path, display: Display, started_at: float
) -> TuneResult:
    """Compile the model of `request` without measuring anything."""
    job = request.job
    layout = plan_slots(config.measure.slots, run=config.measure.run_cores or None)[0]
    log = state_dir / "logs" / "tune.log"
    with ModelProcess(job.model_spec, config, log) as model:
        report = model.accept(job.target, layout, False, None, display.stage, records=state_dir)
        _tell_notes(display, job, report)
        display.stage("writing the model")
        return model.deliver(state_dir, request.out, started_at, False, lambda: None)


def _tell_notes(display: Display, job: JobRequest, accepted: dict[str, Any]) -> None:
    """Tell what the user has to know of an accepted model."""
    if reason := frontends.weights_note(job):
        display.tell(f"the weights of {job.name} are random: {reason}")
    for note in accepted["notes"]:
        display.tell(note)


def _plan(accepted: dict[str, Any], job: JobRequest) -> str:
    """The plan of the job, in one line."""
    tasks, trials, time_budget = int(accepted["tasks"]), job.trials or 0, job.time_budget
    seconds = tasks * trials * _MEASURE_S + _FIXED_S
    if time_budget is not None:
        seconds = min(seconds, time_budget + _FIXED_S)
    text = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    return (
        f"{tasks} tasks, {accepted['flops'] / 1e9:.3g} GFLOP a run; "
        f"up to {trials} candidates of each are measured, about {text}"
    )


def _follow(job: Job, display: Display) -> bool:
    """Wait for the job; return whether the user stopped it. Raises `Failed` if the job failed."""
    last: dict[str, Any] = {"state": "running", "reason": ""}
    with _stoppable(job, display) as stop:
        try:
            for last in job.daemon.follow(job.id):
                if last.get("progress") and last["state"] == "running":
                    display.progress(progress_of(last["progress"]))
        except NoDaemon:
            if not stop.is_set():
                raise
    if stop.is_set() or last["state"] == "cancelled":
        return True
    if last["state"] == "failed":
        raise Failed(last["reason"])
    if last["state"] != "done":
        raise Failed("the daemon ended before the job; see its log; the same command continues")
    recent_gain = (last.get("progress") or {}).get("recent_gain")
    if recent_gain is not None:
        display.tell(outlook(recent_gain))
    return False


@contextmanager
def _stoppable(job: Job, display: Display) -> Iterator[threading.Event]:
    """Cancel the job at the first signal to end; the earlier handler gets the second one."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {s: signal.getsignal(s) for s in ending_signals()}

    def handle(number: int, _frame: FrameType | None) -> None:
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
