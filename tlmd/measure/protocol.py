"""The messages of client, server and children: framed msgpack of small dataclasses."""

from __future__ import annotations

import enum
import os
import struct
from dataclasses import dataclass, field
from typing import Any

from tlmd.data import wire
from tlmd.data.types import MeasureInput, Outcome, TargetInfo, Task
from tlmd.measure.cores.core_plan import CoreLayout

_HEADER = struct.Struct("<IB")
_CHUNK = 1 << 20

NO_REFERENCE = "not verified: the task has no reference"
"""Detail of an outcome that is OK but could not be verified."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Client to server, first."""

    target: TargetInfo
    run: tuple[int, ...]
    """Cores that time."""
    build: tuple[int, ...]
    """Cores that build."""
    cache_dir: str
    config_json: str
    """The section `tlmd.data.config.MeasureConfig`."""

    @property
    def shared(self) -> bool:
        """Building and timing take turns on the same cores."""
        return CoreLayout(self.run, self.build).shared


@dataclass(frozen=True, slots=True)
class Ready:
    """Server to client: it works, or why it cannot."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Client to server: keep this task's module parsed, forget another one ('' for none)."""

    task: Task
    forget: str


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """Client to server: the work of one child.

    One input is a candidate to build, time and check. Several are finalists to compare. None is the
    unscheduled program.
    """

    ticket: int
    task_ids: tuple[str, ...]
    """The task of each input; finalists may be those of alternatives of one computation. Without
    inputs the task itself."""
    inputs: tuple[MeasureInput, ...]

    @property
    def is_baseline(self) -> bool:
        return not self.inputs

    @property
    def is_comparison(self) -> bool:
        return len(self.inputs) > 1


@dataclass(frozen=True, slots=True)
class MeasureReply:
    """Child to server, last, and server to client: one outcome per input.

    A child that died has one outcome, also if it had several inputs.
    """

    ticket: int
    outcomes: tuple[Outcome, ...]
    sent: float = 0.0
    """When the child sent it, by `time.perf_counter`, which all processes share."""


class ChildStage(enum.StrEnum):
    """The work of a child, in order."""

    BUILDING = "building"
    WAITING = "waiting"  # for the slot
    SETTLING = "settling"  # in the slot, until the machine is quiet
    RUNNING = "running"
    CHECKING = "checking"

    @property
    def has_slot(self) -> bool:
        return self in (ChildStage.SETTLING, ChildStage.RUNNING)

    @property
    def has_deadline(self) -> bool:
        """Other children, which have deadlines, or `wait_quiet` end the other stages."""
        return self not in (ChildStage.WAITING, ChildStage.SETTLING)


@dataclass(frozen=True, slots=True)
class Stage:
    """Child to server: the stage that begins now."""

    name: ChildStage


@dataclass(frozen=True, slots=True)
class StandsStill:
    """Server to client, now and then: it is alive, but other programs have the cores."""


_MESSAGES: tuple[type[Any], ...] = (
    Setup,
    Ready,
    LoadTask,
    MeasureRequest,
    MeasureReply,
    Stage,
    StandsStill,
)


@dataclass(slots=True)
class MessageReader:
    """Cuts the bytes that it reads from one descriptor into messages."""

    data: bytearray = field(default_factory=bytearray)

    def read(self, fd: int) -> bool:
        """Read what has arrived; blocks for the first byte. False at the end of the stream."""
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
    """Write one message; raises `OSError` when the reader is gone."""
    body = wire.pack(message)
    view = memoryview(_HEADER.pack(len(body), _MESSAGES.index(type(message))) + body)
    while view:
        view = view[os.write(fd, view) :]
