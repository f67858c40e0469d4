"""Logs of bounded size: a large one is put aside as ``NAME.1``, the one before it as ``NAME.2``."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def put_aside(path: Path, keep: int) -> None:
    """Rename a log, which no process may have open, to ``NAME.1``; keep at most `keep` of them."""
    _make_room(path, keep)
    if keep:
        path.replace(_numbered(path, 1))
    else:
        path.unlink()


def bound_logs(folder: Path, size: int, keep: int) -> None:
    """Put aside what is in the logs of a folder that are larger than `size` bytes.

    Other processes write them, each line at the end: the content is copied, and the file emptied.
    A line that is written between the two is lost. A full disk loses the copy.
    """
    for path in folder.glob("*.log"):
        with contextlib.suppress(OSError):
            if path.stat().st_size <= size:
                continue
            _make_room(path, keep)
            if keep:
                with contextlib.suppress(OSError):
                    shutil.copyfile(path, _numbered(path, 1))
            os.truncate(path, 0)


def _make_room(path: Path, keep: int) -> None:
    """Remove the file with the number `keep`, and give the others the next numbers."""
    _numbered(path, max(keep, 1)).unlink(missing_ok=True)
    for number in range(keep - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            _numbered(path, number).replace(_numbered(path, number + 1))


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
