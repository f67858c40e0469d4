"""Data set files, for sharing: tasks and records as one msgpack document.

A file whose name ends with ``.gz`` or ``.xz`` is compressed, to about an eighth or an eighteenth
(modules are JSON). The second takes longer to write: 14 s for 24,000 records.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tlmd.data import wire
from tlmd.data.errors import BadInput, Failed, in_one_line
from tlmd.data.types import Record, Task
from tlmd.processes.durable import replacing, sync

DATASET_VERSION = 1
_MAGIC = "tlmd-dataset"
_Convert = Callable[[bytes], bytes]
_COMPRESS: dict[str, _Convert] = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".xz": lambda data: lzma.compress(data, preset=9),
}
_DECOMPRESS: dict[str, _Convert] = {".gz": gzip.decompress, ".xz": lzma.decompress}


@dataclass(frozen=True, slots=True)
class Dataset:
    """The content of a data set file."""

    magic: str
    version: int
    tasks: tuple[Task, ...]
    records: tuple[Record, ...]


def read_dataset(path: Path) -> Dataset:
    """Read a data set file. Raises `BadInput` for any other file."""
    try:
        raw = _convert(path, Path(path).read_bytes(), _DECOMPRESS)
        check_version(path, raw, _MAGIC, DATASET_VERSION)
        data = wire.unpack(Dataset, raw)
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise BadInput(f"{path} is damaged ({in_one_line(error)}); export it again") from error
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except wire.WireError as error:
        raise BadInput(
            f"{path} is not a tlmd data set ({in_one_line(error)}); export it again"
        ) from error
    if data.magic != _MAGIC:
        raise BadInput(f"{path} is not a tlmd data set; export it with `tlmd records export`")
    return data


def check_version(path: Path, raw: bytes, magic: str, newest: int) -> None:
    """Raise `BadInput` if a file that begins with `magic` was written by a newer tlmd."""
    head = wire.head(raw, 2)
    if len(head) == 2 and head[0] == magic and isinstance(head[1], int) and head[1] > newest:
        raise BadInput(
            f"{path} was written by a newer tlmd "
            f"(version {head[1]}, this one reads up to {newest}); upgrade tlmd to read it"
        )


def write_dataset(path: Path, tasks: Iterable[Task], records: Iterable[Record]) -> None:
    """Write a data set file completely or not at all. Raises `Failed` if that is impossible."""
    data = wire.pack(Dataset(_MAGIC, DATASET_VERSION, tuple(tasks), tuple(records)))
    data = _convert(path, data, _COMPRESS)
    try:
        with replacing(Path(path)) as new:
            new.write_bytes(data)
            sync(new)
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}; choose another path") from error


def _convert(path: Path, data: bytes, converters: dict[str, _Convert]) -> bytes:
    """`data`, converted if the name of the file says that it is compressed."""
    convert = converters.get(Path(path).suffix)
    return convert(data) if convert else data
