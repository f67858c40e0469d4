"""A child process that handles a user's model, with limits, and the messages to and from it.

A model can crash a frontend, hang, print, fork or need all memory. In a child of its own it costs
one line. A message is its length, and a msgpack pair of a kind and a payload. The parent uses
`GuardedChild`, the program in the child `serve`.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgpack
import psutil

from tlmd.data.config import CheckConfig
from tlmd.data.errors import BadInput, Crashed, Failed, TlmdError
from tlmd.processes import children, shadows

_HEADER = struct.Struct("<I")
_WATCH_S = 0.2
_LATE_S = 1.0  # by which a watch that was suspended wakes up at least
_MOST_LOGGED = 1 << 20  # bytes
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGBUS)
STAGE, ERROR = "stage", "error"


class GuardedChild:
    """Runs ``python -m MODULE`` with limits. One thread reads; any thread may send and `kill`.

    `cwd` is the child's folder, and `paths` are the folders, separated as in PYTHONPATH, from which
    it imports the user's code (empty: from `cwd`). The child's own output goes to `log`. `subject`
    names the model in messages.
    """

    def __init__(
        self,
        module: str,
        log: Path,
        limits: CheckConfig,
        subject: str,
        cwd: str = "",
        paths: str = "",
    ) -> None:
        self._log, self._limits, self._subject = log, limits, subject
        self._stage, self._heard_at = "loading the model", time.monotonic()
        self._reason = ""
        self._is_working = True
        log.parent.mkdir(parents=True, exist_ok=True)
        available = psutil.virtual_memory().available
        self._memory = int(limits.memory_share * available)
        self._folders = (paths or cwd).split(os.pathsep)
        with open(log, "ab") as file:
            self._log_at = file.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                cwd=cwd if cwd and Path(cwd).is_dir() else None,
                env=children.environment(*filter(None, [paths or cwd]), CUDA_VISIBLE_DEVICES=""),
                start_new_session=True,  # what it forks ends with it; Ctrl-C is for the parent
            )
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def __enter__(self) -> GuardedChild:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.kill("")

    def send(self, kind: str, payload: Any = None) -> None:
        """Send a message. Raises `Failed` if the child has ended."""
        self._is_working, self._heard_at = True, time.monotonic()
        assert self._process.stdin is not None
        try:
            _write(self._process.stdin, kind, payload)
        except (OSError, ValueError) as error:
            raise self._end() from error

    def messages(self, last: str) -> Iterator[tuple[str, Any]]:
        """Yield the messages of the child up to the one of kind `last`.

        Raises `BadInput` or `Failed` with the error of the child, `Crashed` if a signal ends it,
        and `BadInput` if it exceeds a limit.
        """
        assert self._process.stdout is not None
        while True:
            message = _read(self._process.stdout)
            if message is None:
                raise self._end()
            kind, payload = message
            self._heard_at = time.monotonic()
            if kind == ERROR:
                text, is_bad_input = payload
                raise BadInput(text) if is_bad_input else Failed(text)
            if kind == STAGE:
                self._stage = str(payload)
            if kind == last:
                self._is_working = False
            yield kind, payload
            if kind == last:
                return

    def kill(self, reason: str = "it was cancelled") -> None:
        """End the child and everything that it has started."""
        self._reason = self._reason or reason
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                pass

    def _watch(self) -> None:
        """Kill the child when it exceeds a limit."""
        while self._process.poll() is None:
            slept_at = time.monotonic()
            time.sleep(_WATCH_S)
            late = time.monotonic() - slept_at - _WATCH_S
            if late > _LATE_S:  # this process was suspended (Ctrl-Z), and heard nothing meanwhile
                self._heard_at += late
            memory = _memory_of(self._process.pid)
            seconds = time.monotonic() - self._heard_at
            if memory > self._memory:
                limit = f"{self._memory / 1e9:.1f} GB of memory, all that is free here"
                self._expire(f"needs more than {limit}")
            elif self._is_working and seconds > self._limits.stage_seconds:
                limit = f"{self._limits.stage_seconds:.0f} s (check.stage_seconds)"
                self._expire(f"takes more than {limit}")

    def _expire(self, reason: str) -> None:
        self._reason = f"{self._stage}: {self._subject} {reason}"
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _end(self) -> TlmdError:
        """The error of a child that has ended without a message."""
        code = self._process.wait()
        if self._reason == "it was cancelled":
            return Failed(self._reason)
        if self._reason:
            return BadInput(f"{self._reason}; use a smaller model or other inputs")
        if code > 0 and (line := shadows.blamed(self._logged(), self._folders)):
            return BadInput(line)
        how = f"exit code {code}"
        if code < 0:
            how = signal.Signals(-code).name + (
                ", out of memory?" if code == -signal.SIGKILL else ""
            )
        kind = Crashed if -code in _CRASHES else BadInput
        return kind(f"{self._stage}: {self._subject} ended the process ({how}); see {self._log}")

    def _logged(self) -> str:
        """What the child has written to the log."""
        try:
            with open(self._log, "rb") as file:
                file.seek(self._log_at)
                return file.read(_MOST_LOGGED).decode(errors="replace")
        except OSError:
            return ""


def _memory_of(pid: int) -> int:
    """Resident bytes of a process and its descendants."""
    total = 0
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            total += one.memory_info().rss
    except psutil.Error:
        pass
    return total


class Channel:
    """The child's end of the messages."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source, self._sink = source, sink

    def send(self, kind: str, payload: Any = None) -> None:
        """Send a message to the parent."""
        _write(self._sink, kind, payload)

    def stage(self, text: str) -> None:
        """Tell what begins now."""
        self.send(STAGE, text)

    def receive(self) -> tuple[str, Any] | None:
        """The next message of the parent; None when it sends no more."""
        return _read(self._source)


def serve(handle: Callable[[Channel], None]) -> int:
    """Run `handle` in the child and report its error to the parent; the exit code.

    The output of libraries goes to the log. The process ends with its parent.
    """
    children.signal_at_end_of_parent(signal.SIGKILL)
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    channel = Channel(source, sink)
    try:
        handle(channel)
    except TlmdError as error:
        channel.send(ERROR, (str(error), isinstance(error, BadInput)))
    except MemoryError:
        channel.send(ERROR, ("the model needs more memory than there is; use a smaller one", True))
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        text = f"{type(error).__name__}: {lines[0][:200]}"
        text += "; this is a defect of tlmd, its log has the details"
        line = shadows.blamed_for(error)
        channel.send(ERROR, (line or text, bool(line)))
    sys.stdout.flush()
    os._exit(0)  # threads and exit handlers of the user's model must not hold it up


def _write(stream: IO[bytes], kind: str, payload: Any) -> None:
    body = msgpack.packb((kind, payload), use_bin_type=True)
    stream.write(_HEADER.pack(len(body)) + body)
    stream.flush()


def _read(stream: IO[bytes]) -> tuple[str, Any] | None:
    try:
        head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack(head)
        body = stream.read(length)
    except (OSError, ValueError):  # it was closed by another thread
        return None
    if len(body) < length:
        return None
    kind, payload = msgpack.unpackb(body, raw=False, strict_map_key=False)
    return kind, payload
