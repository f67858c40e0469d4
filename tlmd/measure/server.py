"""The process that has TVM loaded and forks one child per candidate.

`measurer.Measurer` runs it as ``python -m tlmd.measure.server SOCKET_FD PARENT_PID``. It never
starts a thread and never runs a candidate, so that a fork is safe and cheap (about 5 ms).
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tlmd.config import MeasureConfig
from tlmd.measure import turns
from tlmd.measure.cores import slot_lock
from tlmd.measure.protocol import (
    LoadTask,
    MeasureReply,
    MeasureRequest,
    MessageReader,
    Ready,
    Setup,
    Stage,
    send,
)
from tlmd.measure.sandbox import live_and_die_with, outcome_of_death
from tlmd.space import tvm_alone
from tlmd.types import Outcome, Status
from tlmd.wire import WireError

_INPUT_CACHE_BYTES = 256 << 20
_TAIL_BYTES = 2000
_PRUNE_EVERY = 64  # baselines
_TIMED = "running"  # the stage in which a child has the slot


@dataclass
class _Child:
    """A child that runs, and what the server knows of it."""

    pid: int
    fd: int
    """Where its messages arrive."""
    log_fd: int
    """What it prints."""
    request: MeasureRequest
    deadline: float | None
    """When the server kills it; None while it waits for the slot."""
    stage: str = "building"
    reader: MessageReader = field(default_factory=MessageReader)
    outcomes: tuple[Outcome, ...] = ()
    expired: bool = False


class MeasureServer:
    """The loop: it reads requests, forks a child for each, and sends the replies."""

    def __init__(self, sock: int, setup: Setup) -> None:
        tvm_alone.import_tvm()
        from tlmd.measure import child, child_context, program, verify
        from tlmd.measure.reference import gemm, settled_monitor
        from tlmd.space import intrinsics, schedule
        from tlmd.space.target import tvm_target

        self._sock = sock
        self._config = MeasureConfig.model_validate_json(setup.config_json)
        self._children: dict[int, _Child] = {}
        self._programs: dict[str, program.Program | str] = {}
        self._inputs: OrderedDict[str, tuple[int, list[Any]]] = OrderedDict()
        self._baselines = 0
        self._turns = turns.Turns(Path(setup.cache_dir), setup.shared)
        self._run_child: Callable[..., None] = child.run
        self._parse, self._make_inputs = program.parse, program.make_inputs
        intrinsics.register(setup.target.arch)
        target = tvm_target(setup.target)
        cache = Path(setup.cache_dir)
        store = verify.ReferenceStore(cache, self._config.reference_bytes)
        lock = slot_lock(cache, setup.run)
        monitor = settled_monitor(target, lock, setup) if setup.target.device == "cpu" else None
        self._context = child_context.ServerContext(
            setup, self._config, target, store, monitor, lock
        )
        with contextlib.suppress(schedule.InvalidCandidate):
            # Applying a trace loads modules on first use; all children inherit them.
            schedule.build_module(gemm(), "[[],[]]", target)
        store.prune()
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page that it shares with us

    @property
    def reference_s(self) -> float:
        monitor = self._context.drift_monitor
        return monitor.reference_s if monitor else 1.0

    def serve(self, reader: MessageReader) -> None:
        """Serve until the client is gone, then end all children."""
        try:
            while True:
                for fd in self._readable():
                    if fd != self._sock:
                        self._read_child(self._children[fd])
                    elif not reader.read(fd):
                        return
                while (message := reader.next()) is not None:
                    self._handle(message)
                self._kill_expired()
                self._take_turns()
        finally:
            for child in list(self._children.values()):
                _kill(child.pid)
                os.waitpid(child.pid, 0)
            self.end()

    def end(self) -> None:
        """Let those go on that are stopped."""
        self._turns.take(False, [])

    def _take_turns(self) -> None:
        timed = any(c.stage == _TIMED for c in self._children.values())
        others = [c for c in self._children.values() if c.stage != _TIMED]
        stopped_s = self._turns.take(timed, [c.pid for c in others])
        for child in others:
            if child.deadline is not None:
                child.deadline += stopped_s

    def _readable(self) -> list[int]:
        poll = select.poll()
        for fd in (self._sock, *self._children):
            poll.register(fd, select.POLLIN)
        deadlines = [c.deadline for c in self._children.values() if c.deadline is not None]
        wait = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        return [fd for fd, _ in poll.poll(None if wait is None else wait * 1000 + 1)]

    def _handle(self, message: Any) -> None:
        if isinstance(message, LoadTask):
            self._programs.pop(message.forget, None)
            self._inputs.pop(message.forget, None)
            try:
                self._programs[message.task.id] = self._parse(message.task)
            except Exception as error:
                self._programs[message.task.id] = f"the task's module cannot be used: {error}"
        elif isinstance(message, MeasureRequest):
            known = self._programs.get(message.task_id, "the task was not loaded")
            if isinstance(known, str):
                detail = " ".join(known.split())[:300]
                self._reply(message, (Outcome(Status.BUILD_ERROR, detail=detail),))
            else:
                self._fork(message, known)

    def _fork(self, request: MeasureRequest, program: Any) -> None:
        read_fd, write_fd = os.pipe()
        log_fd = os.memfd_create("candidate")
        inputs = self._cached_inputs(program)
        forked = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(self._sock)  # the client must see our end, not our children's
                self._run_child(self._context, request, program, inputs, forked, write_fd, log_fd)
                status = 0
            finally:
                os._exit(status)
        os.close(write_fd)
        programs = max(1, len(request.inputs))
        deadline = time.monotonic() + self._config.build_timeout * programs
        self._children[read_fd] = _Child(pid, read_fd, log_fd, request, deadline)

    def _cached_inputs(self, program: Any) -> list[Any] | None:
        """Inputs that children inherit; None where they are too large to keep in memory."""
        if program.input_bytes > _INPUT_CACHE_BYTES // 4:
            return None
        if not self._context.store.has(
            program.task_id
        ):  # the baseline chooses which kind of inputs
            return None
        if program.task_id not in self._inputs:
            positive = self._context.store.positive(program.task_id)
            inputs = self._make_inputs(program, positive)
            self._inputs[program.task_id] = program.input_bytes, inputs
        self._inputs.move_to_end(program.task_id)
        while sum(size for size, _ in self._inputs.values()) > _INPUT_CACHE_BYTES:
            self._inputs.popitem(last=False)
        return self._inputs[program.task_id][1]

    def _read_child(self, child: _Child) -> None:
        try:
            alive = child.reader.read(child.fd)
            while (message := child.reader.next()) is not None:
                if isinstance(message, Stage):
                    child.stage = message.name
                    child.deadline = self._deadline(child)
                elif isinstance(message, MeasureReply):
                    took = time.perf_counter() - message.sent
                    child.outcomes = tuple(
                        replace(o, timing=replace(o.timing, report=took)) for o in message.outcomes
                    )
        except WireError:  # a program wrote into the pipe
            alive = False
        if not alive:
            self._reap_child(child)

    def _deadline(self, child: _Child) -> float | None:
        if child.stage == "waiting":  # for other children, each of which has a deadline
            return None
        config, is_baseline = self._config, child.request.is_baseline
        return time.monotonic() + (config.baseline_timeout if is_baseline else config.run_timeout)

    def _kill_expired(self) -> None:
        now = time.monotonic()
        for child in self._children.values():
            if child.deadline is not None and child.deadline <= now:
                child.expired = True
                child.deadline = None
                _kill(child.pid)  # then its pipe ends, and `_read_child` notices

    def _reap_child(self, child: _Child) -> None:
        status = _wait(child.pid)
        del self._children[child.fd]
        os.close(child.fd)
        size = os.fstat(child.log_fd).st_size
        log = os.pread(child.log_fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(
            errors="replace"
        )
        os.close(child.log_fd)
        outcomes = child.outcomes or (outcome_of_death(child.stage, child.expired, status, log),)
        if child.request.is_baseline:
            self._baselines += 1
            if self._baselines % _PRUNE_EVERY == 0:
                self._context.store.prune()
        self._reply(child.request, outcomes)

    def _reply(self, request: MeasureRequest, outcomes: tuple[Outcome, ...]) -> None:
        with contextlib.suppress(OSError):  # where the client is gone, the loop ends by itself
            send(self._sock, MeasureReply(request.ticket, outcomes))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _wait(pid: int) -> int:
    """Wait for a child whose pipe has ended; kill it after a second if it still runs."""
    for _ in range(200):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(0.005)
    _kill(pid)
    return os.waitpid(pid, 0)[1]


def main(sock: int, parent: int) -> int:
    """Serve the client at the other end of the socket; the exit code."""
    ends: list[Callable[[], None]] = []
    live_and_die_with(parent, ends)
    reader = MessageReader()
    while (setup := reader.next()) is None:
        if not reader.read(sock):
            return 0
    try:
        os.sched_setaffinity(0, setup.build)
        server = MeasureServer(sock, setup)
    except Exception as error:
        traceback.print_exc()
        reason = " ".join(str(error).split())[-300:] or type(error).__name__
        send(sock, Ready(0.0, f"{type(error).__name__}: {reason}"))
        return 1
    ends.append(server.end)
    send(sock, Ready(server.reference_s))
    server.serve(reader)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
