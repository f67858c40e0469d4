"""Files of demonstrations: all that training the language model needs, without TVM."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tlmd.data import wire
from tlmd.data.errors import BadInput
from tlmd.language.vocabulary import FINGERPRINT
from tlmd.tlm.demonstration import TaskDemonstrations

_MAGIC = "tlmd-demonstrations"


@dataclass(frozen=True, slots=True)
class _DemonstrationFile:
    magic: str
    vocabulary: str
    tasks: tuple[TaskDemonstrations, ...]


def write_demonstrations(path: Path, tasks: Iterable[TaskDemonstrations]) -> None:
    """Write a gzip file of msgpack."""
    data = wire.pack(_DemonstrationFile(_MAGIC, FINGERPRINT, tuple(tasks)))
    path.write_bytes(gzip.compress(data, mtime=0))


def read_demonstrations(path: Path) -> tuple[TaskDemonstrations, ...]:
    """Read a file of `write_demonstrations`. Raises `BadInput` for any other file."""
    try:
        data = wire.unpack(_DemonstrationFile, gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, wire.WireError) as error:
        raise BadInput(f"{path} is no file of demonstrations ({error}); make it again") from error
    if data.magic != _MAGIC or data.vocabulary != FINGERPRINT:
        raise BadInput(f"{path} is for another version of the tensor language; make it again")
    return data.tasks
