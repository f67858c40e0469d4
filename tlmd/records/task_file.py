"""Files of tasks: what a job tunes, or a corpus to train on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tlmd.data import wire
from tlmd.data.errors import BadInput, Failed, in_one_line
from tlmd.data.types import Task
from tlmd.processes.durable import replacing
from tlmd.records.dataset import check_version, read_dataset

_MAGIC, _VERSION = "tlmd-tasks", 1


@dataclass(frozen=True, slots=True)
class TaskFile:
    """The content of a file of tasks."""

    magic: str
    version: int
    tasks: tuple[Task, ...]


def save_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks as msgpack. The file is complete or missing. Raises `Failed` on a full disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as new:
            new.write_bytes(wire.pack(TaskFile(_MAGIC, _VERSION, tuple(tasks))))
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}; check the disk") from error


def load_tasks(path: Path) -> list[Task]:
    """Read a file of `save_tasks`. Raises `BadInput` if it is missing, damaged or newer."""
    try:
        data = path.read_bytes()
        check_version(path, data, _MAGIC, _VERSION)
        if wire.head(data, 1) == [_MAGIC]:
            return list(wire.unpack(TaskFile, data).tasks)
        # tlmd 0.1 wrote the tasks alone.
        return list(wire.unpack(tuple[Task, ...], data))  # type: ignore[arg-type]
    except OSError as error:
        raise BadInput(f"cannot read {path} ({error.strerror}); give a file of tasks") from error
    except wire.WireError as error:
        raise BadInput(
            f"{path} is no file of tasks ({in_one_line(error)}); extract the tasks again"
        ) from error


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a file of `save_tasks` or of a data set. Raises `BadInput` for another file."""
    try:
        return load_tasks(path)
    except BadInput as error:
        try:
            return list(read_dataset(path).tasks)
        except BadInput:
            raise error from None
