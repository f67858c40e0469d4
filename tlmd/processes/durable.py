"""Files that are on disk before anything relies on them, and that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file, or the file names of a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a file that takes the place of `path` when the block ends.

    Others see the old file or all of the new one, also where several processes write at once. If
    the block raises, the old file stays. Raises `OSError` where the directory cannot be written.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield new
        new.replace(path)
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
