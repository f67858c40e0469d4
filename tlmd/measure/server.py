"""The process that has TVM loaded and forks one child per candidate.

Run as ``python -m tlmd.measure.server SOCKET_FD PARENT_PID`` by `client.Measurer`. It never starts
a thread and never runs a candidate, so that forking it is safe and cheap (about 5 ms).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import select
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tlmd.measure.cores import slot_lock
from tlmd.measure.protocol import (
    Final,
    Inbox,
    Load,
    Ready,
    Reply,
    Setup,
    Stage,
    Verdict,
    Work,
    send,
)
from tlmd.measure.sandbox import post_mortem
from tlmd.types import Outcome, Status
from tlmd.wire import WireError

_PR_SET_PDEATHSIG = 1
_INPUT_CACHE_BYTES = 256 << 20
_TAIL_BYTES = 2000
_PRUNE_EVERY = 64  # baselines


@dataclass
class _Child:
    """A living child and what is known of it. ``deadline``: when it is killed, if ever."""

    pid: int
    fd: int
    log_fd: int
    work: Work | Final
    deadline: float | None
    stage: str = "building"
    inbox: Inbox = field(default_factory=Inbox)
    outcomes: tuple[Outcome, ...] = ()
    expired: bool = False


class Server:
    """The loop: requests in, children out, replies back."""

    def __init__(self, sock: int, setup: Setup) -> None:
        from tlmd.measure import child, program, rig, verify
        from tlmd.measure.reference import gemm
        from tlmd.space import intrinsics, schedule
        from tlmd.space.target import tvm_target

        self._sock = sock
        self._limits = setup.limits
        self._children: dict[int, _Child] = {}
        self._programs: dict[str, program.Program | str] = {}
        self._inputs: OrderedDict[str, tuple[int, list[Any]]] = OrderedDict()
        self._baselines = 0
        self._run_child: Callable[..., None] = child.run
        self._parse, self._make_inputs = program.parse, program.make_inputs
        intrinsics.register(setup.target.arch)
        target = tvm_target(setup.target)
        cache = Path(setup.cache_dir)
        store = verify.ReferenceStore(cache, self._limits.cache_bytes)
        lock = slot_lock(cache, setup.run)
        gauge = _settled_gauge(target, lock, setup) if setup.target.device == "cpu" else None
        self._env = rig.Environment(setup, target, store, gauge, lock)
        with contextlib.suppress(schedule.InvalidCandidate):
            # What applying a trace loads on first use, all children inherit.
            schedule.build_module(gemm(), "[[],[]]", target)
        store.prune()
        gc.collect()
        gc.freeze()  # collecting in children would copy every page they share with us

    @property
    def reference_s(self) -> float:
        return self._env.gauge.reference_s if self._env.gauge else 1.0

    def serve(self, inbox: Inbox) -> None:
        """Until the client is gone; then no child is left."""
        try:
            while True:
                for fd in self._readable():
                    if fd != self._sock:
                        self._hear(self._children[fd])
                    elif not inbox.read(fd):
                        return
                while (message := inbox.next()) is not None:
                    self._handle(message)
                self._kill_expired()
        finally:
            for one in list(self._children.values()):
                _kill(one.pid)
                os.waitpid(one.pid, 0)

    def _readable(self) -> list[int]:
        poll = select.poll()
        for fd in (self._sock, *self._children):
            poll.register(fd, select.POLLIN)
        deadlines = [c.deadline for c in self._children.values() if c.deadline is not None]
        wait = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        return [fd for fd, _ in poll.poll(None if wait is None else wait * 1000 + 1)]

    def _handle(self, message: Any) -> None:
        if isinstance(message, Load):
            self._programs.pop(message.forget, None)
            self._inputs.pop(message.forget, None)
            try:
                self._programs[message.task.id] = self._parse(message.task)
            except Exception as error:
                self._programs[message.task.id] = f"the task's module cannot be used: {error}"
        elif isinstance(message, Work | Final):
            known = self._programs.get(message.task_id, "the task was not loaded")
            if isinstance(known, str):
                detail = " ".join(known.split())[:300]
                self._reply(message, (Outcome(Status.BUILD_ERROR, detail=detail),))
            else:
                self._fork(message, known)

    def _fork(self, work: Work | Final, program: Any) -> None:
        read_fd, write_fd = os.pipe()
        log_fd = os.memfd_create("candidate")
        inputs = self._cached_inputs(program)
        forked = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(self._sock)  # the client must see our end, not our children's
                self._run_child(self._env, work, program, inputs, forked, write_fd, log_fd)
                status = 0
            finally:
                os._exit(status)
        os.close(write_fd)
        programs = len(work.candidates) if isinstance(work, Final) else 1
        deadline = time.monotonic() + self._limits.build_s * programs
        self._children[read_fd] = _Child(pid, read_fd, log_fd, work, deadline)

    def _cached_inputs(self, program: Any) -> list[Any] | None:
        """Inputs that children inherit; None where they are too large to keep."""
        if program.input_bytes > _INPUT_CACHE_BYTES // 4:
            return None
        if not self._env.store.has(program.task_id):  # which kind of inputs is not known yet
            return None
        if program.task_id not in self._inputs:
            positive = self._env.store.positive(program.task_id)
            inputs = self._make_inputs(program, positive)
            self._inputs[program.task_id] = program.input_bytes, inputs
        self._inputs.move_to_end(program.task_id)
        while sum(size for size, _ in self._inputs.values()) > _INPUT_CACHE_BYTES:
            self._inputs.popitem(last=False)
        return self._inputs[program.task_id][1]

    def _hear(self, one: _Child) -> None:
        try:
            alive = one.inbox.read(one.fd)
            while (message := one.inbox.next()) is not None:
                if isinstance(message, Stage):
                    one.stage = message.name
                    one.deadline = self._deadline(one)
                elif isinstance(message, Verdict):
                    took = time.perf_counter() - message.sent
                    one.outcomes = tuple(
                        replace(o, timing=replace(o.timing, report=took)) for o in message.outcomes
                    )
        except WireError:  # a program scribbled over the pipe
            alive = False
        if not alive:
            self._bury(one)

    def _deadline(self, one: _Child) -> float | None:
        if one.stage == "waiting":  # for others, each of which has a deadline
            return None
        seconds = self._limits.baseline_s if one.work.is_baseline else self._limits.run_s
        return time.monotonic() + seconds

    def _kill_expired(self) -> None:
        now = time.monotonic()
        for one in self._children.values():
            if one.deadline is not None and one.deadline <= now:
                one.expired = True
                one.deadline = None
                _kill(one.pid)  # its pipe ends, which `_hear` notices

    def _bury(self, one: _Child) -> None:
        status = _wait(one.pid)
        del self._children[one.fd]
        os.close(one.fd)
        size = os.fstat(one.log_fd).st_size
        log = os.pread(one.log_fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
        os.close(one.log_fd)
        outcomes = one.outcomes or (post_mortem(one.stage, one.expired, status, log),)
        if one.work.is_baseline:
            self._baselines += 1
            if self._baselines % _PRUNE_EVERY == 0:
                self._env.store.prune()
        self._reply(one.work, outcomes)

    def _reply(self, work: Work | Final, outcomes: tuple[Outcome, ...]) -> None:
        with contextlib.suppress(OSError):  # a client that is gone ends the loop by itself
            send(self._sock, Reply(work.ticket, outcomes))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _wait(pid: int) -> int:
    """Wait for a child whose pipe ended; one that only closed the pipe is killed after a second."""
    for _ in range(200):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(0.005)
    _kill(pid)
    return os.waitpid(pid, 0)[1]


def _settled_gauge(target: Any, lock: Path, setup: Setup) -> Any:
    """A gauge that saw the idle slot."""
    from tlmd.measure.reference import CacheProbe, Gauge, ReferenceKernel

    kernel, probe = ReferenceKernel(target), CacheProbe(target, setup.target.l2_bytes)
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.sched_setaffinity(0, setup.run)
        try:
            return Gauge(kernel, probe, setup.reference_s)
        finally:
            os.sched_setaffinity(0, setup.build)


def _live_and_die_with(parent: int) -> None:
    """End with the client: SIGHUP when it dies; interrupts are for the client to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def orphaned(*_: Any) -> None:
        # The signal also comes when only the thread that started us ends.
        if os.getppid() != parent:
            os._exit(0)

    signal.signal(signal.SIGHUP, orphaned)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    orphaned()


def main(sock: int, parent: int) -> int:
    """Serve the client at the other end of the socket; the exit code."""
    _live_and_die_with(parent)
    inbox = Inbox()
    while (setup := inbox.next()) is None:
        if not inbox.read(sock):
            return 0
    try:
        os.sched_setaffinity(0, setup.build)
        server = Server(sock, setup)
    except Exception as error:
        import traceback

        traceback.print_exc()
        reason = " ".join(str(error).split())[-300:] or type(error).__name__
        send(sock, Ready(0.0, f"{type(error).__name__}: {reason}"))
        return 1
    send(sock, Ready(server.reference_s))
    server.serve(inbox)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
