"""The process that has TVM loaded and forks one child per candidate.

`measurer.Measurer` runs it as ``python -m tlmd.measure.server.server SOCKET_FD PARENT_PID``. It
never starts a thread and never runs a candidate, so that a fork is safe and cheap (about 5 ms).
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tlmd.data.config import MeasureConfig
from tlmd.data.types import Outcome, Status
from tlmd.data.wire import WireError
from tlmd.measure.cores import suspension
from tlmd.measure.cores.background import BackgroundWork, OtherPrograms
from tlmd.measure.cores.slot_lock import slot_lock
from tlmd.measure.protocol import (
    LoadTask,
    MeasureReply,
    MeasureRequest,
    MessageReader,
    Ready,
    Setup,
    Stage,
    StandsStill,
    send,
)
from tlmd.measure.server.forked import ForkedChild
from tlmd.measure.server.sandbox import live_and_die_with, outcome_of_death
from tlmd.space import tvm_alone

_INPUT_CACHE_BYTES = 256 << 20
_TAIL_BYTES = 2000
_PRUNE_EVERY = 64  # baselines
_TICK_S = 0.2  # how often a daemon in the background looks whether it must stand still
_SIGN_OF_LIFE_S = 10.0


class MeasureServer:
    """The loop: it reads requests, forks a child for each, and sends the replies."""

    def __init__(self, sock: int, setup: Setup) -> None:
        tvm_alone.import_tvm()
        from tlmd.measure.server import child, child_context, program, verify
        from tlmd.measure.timing.reference import gemm, settled_monitor
        from tlmd.space import apply_trace, intrinsics
        from tlmd.space.hardware.target import tvm_target

        self._sock = sock
        self._config = MeasureConfig.model_validate_json(setup.config_json)
        self._children: dict[int, ForkedChild] = {}
        self._programs: dict[str, program.Program | str] = {}
        self._inputs: OrderedDict[str, tuple[int, list[Any]]] = OrderedDict()
        self._baselines = 0
        self._shared = setup.shared
        self._suspension = suspension.Suspension(Path(setup.cache_dir))
        others = OtherPrograms({*setup.run, *setup.build})
        self._background = BackgroundWork(others, self._config.background_share)
        self._told_at = 0.0
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
        with contextlib.suppress(apply_trace.InvalidCandidate):
            # Applying a trace loads modules on first use; all children inherit them.
            apply_trace.build_module(gemm(), "[[],[]]", target)
        store.prune()
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page that it shares with us

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
                self._suspend_others()
        finally:
            for child in list(self._children.values()):
                child.kill()
                os.waitpid(child.pid, 0)
            self.end()

    def end(self) -> None:
        """Let those go on that are stopped."""
        self._suspension.resume([])

    def _suspend_others(self) -> None:
        """Stop all that is not timed while something is, or while other programs come first."""
        timed = [c.pid for c in self._children.values() if c.is_timed]
        others = [c for c in self._children.values() if not c.is_timed]
        pids = [c.pid for c in others]
        must_wait = self._background.must_wait()
        if (timed and self._shared) or must_wait:
            self._suspension.suspend(pids, timed)
        elif self._shared or self._suspension.is_suspending:
            stopped_s = self._suspension.resume(pids)
            for child in others:
                if child.deadline is not None:
                    child.deadline += stopped_s
        if must_wait:
            self._send_sign_of_life()

    def _send_sign_of_life(self) -> None:
        """Tell the client from time to time that children go on, though they do not end."""
        if time.monotonic() - self._told_at > _SIGN_OF_LIFE_S:
            self._told_at = time.monotonic()
            with contextlib.suppress(OSError):
                send(self._sock, StandsStill())

    def _going(self) -> list[ForkedChild]:
        """The children whose time is limited now: those that stand still lose none."""
        return [
            c for c in self._children.values() if c.is_timed or not self._suspension.is_suspending
        ]

    def _readable(self) -> list[int]:
        poll = select.poll()
        for fd in (self._sock, *self._children):
            poll.register(fd, select.POLLIN)
        now = time.monotonic()
        waits = [max(0.0, c.deadline - now) for c in self._going() if c.deadline is not None]
        waits += [_TICK_S] if self._background.is_limited else []
        return [fd for fd, _ in poll.poll(min(waits) * 1000 + 1 if waits else None)]

    def _handle(self, message: Any) -> None:
        if isinstance(message, LoadTask):
            self._programs.pop(message.forget, None)
            self._inputs.pop(message.forget, None)
            try:
                self._programs[message.task.id] = self._parse(message.task)
            except Exception as error:
                self._programs[message.task.id] = f"the task's module cannot be used: {error}"
        elif isinstance(message, MeasureRequest):
            missing = "the task was not loaded"
            programs = [self._programs.get(task_id, missing) for task_id in message.task_ids]
            errors = [program for program in programs if isinstance(program, str)]
            if errors:
                detail = " ".join(errors[0].split())[:300]
                self._reply(message, (Outcome(Status.BUILD_ERROR, detail=detail),))
            else:
                self._fork(message, programs)

    def _fork(self, request: MeasureRequest, programs: list[Any]) -> None:
        read_fd, write_fd = os.pipe()
        log_fd = os.memfd_create("candidate")
        given = [(program, self._cached_inputs(program)) for program in programs]
        forked = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(self._sock)  # the client must see our end, not our children's
                self._run_child(self._context, request, given, forked, write_fd, log_fd)
                status = 0
            finally:
                os._exit(status)
        os.close(write_fd)
        child = self._children[read_fd] = ForkedChild(pid, read_fd, log_fd, request)
        child.set_deadline(self._config.build_timeout * len(programs))

    def _cached_inputs(self, program: Any) -> list[Any] | None:
        """Inputs that children inherit; None where they are too large to keep in memory."""
        if program.input_bytes > _INPUT_CACHE_BYTES // 4:
            return None
        if not self._context.store.has(program.reference_id):
            return None  # the baseline chooses which kind of inputs
        if program.task_id not in self._inputs:
            positive = self._context.store.positive(program.reference_id)
            inputs = self._make_inputs(program, positive)
            self._inputs[program.task_id] = program.input_bytes, inputs
        self._inputs.move_to_end(program.task_id)
        while sum(size for size, _ in self._inputs.values()) > _INPUT_CACHE_BYTES:
            self._inputs.popitem(last=False)
        return self._inputs[program.task_id][1]

    def _read_child(self, child: ForkedChild) -> None:
        try:
            alive = child.reader.read(child.fd)
            while (message := child.reader.next()) is not None:
                if isinstance(message, Stage):
                    child.stage = message.name
                    child.set_deadline(self._limit_s(child))
                elif isinstance(message, MeasureReply):
                    took = time.perf_counter() - message.sent
                    child.outcomes = tuple(
                        replace(o, timing=replace(o.timing, report=took)) for o in message.outcomes
                    )
        except WireError:  # a program wrote into the pipe
            alive = False
        if not alive:
            self._reap_child(child)

    def _limit_s(self, child: ForkedChild) -> float | None:
        if not child.stage.has_deadline:
            return None
        config, is_baseline = self._config, child.request.is_baseline
        return config.baseline_timeout if is_baseline else config.run_timeout

    def _kill_expired(self) -> None:
        now = time.monotonic()
        for child in self._going():
            if child.deadline is None or child.deadline > now:
                continue
            if child.extend_deadline():  # other programs had the cores meanwhile
                self._send_sign_of_life()
            else:
                child.expired = True
                child.deadline = None
                child.kill()  # then its pipe ends, and `_read_child` notices

    def _reap_child(self, child: ForkedChild) -> None:
        status = child.wait()
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
        send(sock, Ready(f"{type(error).__name__}: {reason}"))
        return 1
    ends.append(server.end)
    send(sock, Ready())
    server.serve(reader)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
