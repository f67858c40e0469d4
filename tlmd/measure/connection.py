"""One measuring server as its client sees it: start, talk, end."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tlmd.data.errors import Failed
from tlmd.data.types import Task
from tlmd.data.wire import WireError
from tlmd.measure.protocol import LoadTask, MeasureRequest, MessageReader, Ready, Setup, send
from tlmd.processes import children

_START_S = 120.0
_CLOSE_S = 5.0
_STOP_S = 0.1  # between two looks at `stop`
_LOADED_TASKS = 128  # that a server keeps parsed


class Connection:
    """A running server and the socket to it; the server ends when the socket does.

    Raises `Failed` when the server does not start (about 3 s) or `stop` is set meanwhile.
    """

    def __init__(self, setup: Setup, stop: threading.Event | None = None) -> None:
        slot = "-".join(map(str, setup.run))
        log_path = Path(setup.cache_dir) / f"server-{slot}.log"
        self._reader = MessageReader()
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tlmd.measure.server.server", str(theirs.fileno())]
        with theirs, open(log_path, "wb") as log:
            self._process = subprocess.Popen(
                [*command, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                env=_environment(len(setup.run)),
            )
        with contextlib.suppress(OSError):
            self._send(setup)
        ready = self._await_ready(stop or threading.Event())
        if not isinstance(ready, Ready) or ready.error:
            code = self.kill()
            reason = ready.error if isinstance(ready, Ready) else f"exit code {code}"
            raise Failed(f"the measuring server did not start ({reason}); see {log_path}")

    def _await_ready(self, stop: threading.Event) -> Any:
        deadline = time.monotonic() + _START_S
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        while not stop.is_set() and time.monotonic() < deadline:
            if poll.poll(_STOP_S * 1000):
                messages = self.read()
                if messages is None or messages:
                    return messages[0] if messages else None
        return None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def fileno(self) -> int:
        """The descriptor to poll for replies."""
        return self._socket.fileno()

    def send_request(self, tasks: Iterable[Task], request: MeasureRequest) -> None:
        """Send a request, and before it those of its tasks that the server does not have.

        Raises `OSError` when the server is gone.
        """
        for task in tasks:
            self._load(task)
        self._send(request)

    def _load(self, task: Task) -> None:
        if task.id in self._loaded:
            self._loaded.move_to_end(task.id)
            return
        forget = ""
        if len(self._loaded) >= _LOADED_TASKS:
            forget = self._loaded.popitem(last=False)[0]
        self._loaded[task.id] = None
        self._send(LoadTask(task, forget))

    def read(self) -> list[Any] | None:
        """Messages that have arrived; None where the server is gone or sends something else."""
        with contextlib.suppress(OSError, WireError):
            if self._reader.read(self.fileno):
                return list(iter(self._reader.next, None))
        return None

    def _send(self, message: Any) -> None:
        send(self.fileno, message)

    def close(self) -> None:
        """Let the server end itself and its children."""
        self._socket.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> int:
        """End the server at once; its children die with it. The exit code."""
        self._socket.close()
        self._process.kill()
        return self._process.wait()


def _environment(threads: int) -> dict[str, str]:
    # A thread of a BLAS library would make forking unsafe.
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return children.running_tvm(threads, **one)
