"""What client, server and children say to each other: framed msgpack of small dataclasses."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import Any

from tlmd import wire
from tlmd.types import Candidate, Outcome, TargetInfo, Task

_HEADER = struct.Struct("<IB")
_CHUNK = 1 << 20

NO_REFERENCE = "not verified: the task has no reference"
"""The detail of an outcome that is OK but could not be compared with anything."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one candidate may cost; seconds of wall clock and bytes.

    ``run_s`` counts from getting the run lock to the end of the check, ``budget_s`` bounds the
    timing loop itself, ``baseline_s`` replaces ``run_s`` for the unscheduled program (slow on
    purpose), ``memory_bytes`` is address space on top of the server's own (0: no limit),
    ``cache_bytes`` bounds the reference outputs kept on disk. ``cold``: the model's weights are
    not in the caches when a run begins.

    Example: ``Limits(build_s=10, run_s=5)``.
    """

    build_s: float = 30.0
    run_s: float = 20.0
    budget_s: float = 3.0
    baseline_s: float = 120.0
    memory_bytes: int = 4 << 30
    repeats: int = 7
    cache_bytes: int = 4 << 30
    cold: bool = True


@dataclass(frozen=True, slots=True)
class Setup:
    """Client to server, first. ``reference_s`` is 0 unless an earlier server measured it.

    ``lend``: while nothing is timed, children may build on the run cores too.
    """

    target: TargetInfo
    run: tuple[int, ...]
    build: tuple[int, ...]
    cache_dir: str
    limits: Limits
    reference_s: float
    lend: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """Server to client: the reference kernel's seconds, or why the server cannot work."""

    reference_s: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """Client to server: keep this task's module parsed, forget another one ('' for none)."""

    task: Task
    forget: str


@dataclass(frozen=True, slots=True)
class Work:
    """Client to server: measure one candidate; an empty trace is the unscheduled program."""

    ticket: int
    task_id: str
    trace: str
    incumbent_s: float | None

    @property
    def is_baseline(self) -> bool:
        return not self.trace


@dataclass(frozen=True, slots=True)
class Final:
    """Client to server: time these candidates of a task against each other."""

    ticket: int
    task_id: str
    candidates: tuple[Candidate, ...]

    @property
    def is_baseline(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Reply:
    """Server to client: what became of a `Work` (one outcome) or of a `Final` (one for each).

    A child that died has one outcome to show, whatever it had to do.
    """

    ticket: int
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """Child to server: what it does from now on (waiting, running, checking)."""

    name: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Child to server, last; ``sent`` by `time.perf_counter`, which all processes share."""

    outcomes: tuple[Outcome, ...]
    sent: float


_MESSAGES: tuple[type[Any], ...] = (Setup, Ready, Load, Work, Reply, Stage, Verdict, Final)


@dataclass(slots=True)
class Inbox:
    """Bytes read from one descriptor, cut into messages."""

    data: bytearray = field(default_factory=bytearray)

    def read(self, fd: int) -> bool:
        """Read what is there (blocks when nothing is); False at the end of the stream."""
        try:
            chunk = os.read(fd, _CHUNK)
        except ConnectionResetError:
            return False
        self.data += chunk
        return bool(chunk)

    def next(self) -> Any:
        """The next whole message or None; raises `wire.WireError` for anything else."""
        if len(self.data) < _HEADER.size:
            return None
        length, tag = _HEADER.unpack_from(self.data)
        if tag >= len(_MESSAGES):
            raise wire.WireError(f"unknown message {tag}")
        end = _HEADER.size + length
        if len(self.data) < end:
            return None
        body = bytes(self.data[_HEADER.size : end])
        del self.data[:end]
        return wire.unpack(_MESSAGES[tag], body)


def send(fd: int, message: Any) -> None:
    """Write one message; raises `OSError` when the other side is gone."""
    body = wire.pack(message)
    view = memoryview(_HEADER.pack(len(body), _MESSAGES.index(type(message))) + body)
    while view:
        view = view[os.write(fd, view) :]
