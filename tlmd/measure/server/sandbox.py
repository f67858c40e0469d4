"""The limits of a child process and its end, and the outcome of one that died."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tlmd.data.config import MeasureConfig
from tlmd.data.types import Outcome, Status
from tlmd.measure.cores import suspension
from tlmd.measure.protocol import ChildStage, Setup
from tlmd.processes import children

_LOG_BYTES = 16 << 20
_OUT_OF_MEMORY = ("bad_alloc", "Cannot allocate memory", "out of memory", "MemoryError")
_LINK_ERROR = "JIT session error"
_HANDLED_SIGNALS = (
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGFPE,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGHUP,
)


def live_and_die_with(parent: int, ends: list[Callable[[], None]]) -> None:
    """End with the client: SIGHUP when it dies; interrupts are for the client to handle.

    Before that, what is in `ends` is called.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def orphaned(*_: Any) -> None:
        # The signal also comes when only the thread that started us ends.
        if os.getppid() != parent:
            for end in ends:
                end()
            os._exit(0)

    signal.signal(signal.SIGHUP, orphaned)
    children.signal_at_end_of_parent(signal.SIGHUP)
    orphaned()


def restrict(setup: Setup, config: MeasureConfig, is_baseline: bool, log_fd: int) -> None:
    """Set the limits of this child, so that it cannot disturb others; its output goes to a log."""
    children.signal_at_end_of_parent(signal.SIGKILL)
    for number in _HANDLED_SIGNALS:  # TVM's handler prints a backtrace
        signal.signal(number, signal.SIG_DFL)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.sched_setaffinity(0, setup.build)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not is_baseline:  # the baseline writes reference files
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LOG_BYTES, _LOG_BYTES))
    with contextlib.suppress(OSError):  # if memory runs out, the kernel should end this process
        Path("/proc/self/oom_score_adj").write_text("1000")
    # CUDA reserves far more addresses than it uses.
    if config.memory_bytes and setup.target.device == "cpu":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + config.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def confine_siblings(cores: tuple[int, ...]) -> None:
    """Let the server's other children run on `cores` only."""
    for pid in suspension.siblings():
        with contextlib.suppress(OSError):  # it has just ended
            os.sched_setaffinity(pid, cores)


def says_out_of_memory(text: str) -> bool:
    """Whether an error message or a log means that memory ran out."""
    return any(word in text for word in _OUT_OF_MEMORY)


def outcome_of_death(stage: ChildStage, expired: bool, status: int, log: str) -> Outcome:
    """The outcome of a child that died before it could report.

    `stage` is its last stage, `status` the result of `os.waitpid`, and `log` the end of its output.
    `expired`: the server killed it because its time was over.
    """
    tail = " | ".join(line.strip() for line in log.splitlines() if line.strip())[-300:]
    tail = f": {tail}" if tail else ""
    if expired:
        return Outcome(Status.TIMEOUT, detail=f"killed after its time limit while {stage}")
    if _LINK_ERROR in log:  # the just-in-time linker runs at the first call; then the call crashes
        return Outcome(Status.BUILD_ERROR, detail=f"cannot be linked{tail}")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            detail = f"killed by the system while {stage}, most likely out of memory"
            return Outcome(Status.OUT_OF_MEMORY, detail=detail)
        detail = f"{signal.Signals(number).name} ({number}) while {stage}{tail}"
        out = says_out_of_memory(log)
        return Outcome(Status.OUT_OF_MEMORY if out else Status.CRASH, detail=detail)
    detail = f"exited with {os.waitstatus_to_exitcode(status)} while {stage}{tail}"
    if says_out_of_memory(log):
        return Outcome(Status.OUT_OF_MEMORY, detail=detail)
    is_building = stage is ChildStage.BUILDING
    return Outcome(Status.BUILD_ERROR if is_building else Status.RUN_ERROR, detail=detail)
