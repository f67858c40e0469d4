"""A file system of its own for a state directory, which can be filled without harm."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_BYTES = 256 << 20
_PORTION = bytes(1 << 20)


class SmallDisk:
    """A folder that is a small file system, if this user may mount one; else a plain folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_BYTES}", "tlmd-chaos", str(folder)],
            capture_output=True,
            check=False,
        )
        self.is_small = done.returncode == 0
        """It can be filled."""

    @contextlib.contextmanager
    def filled(self) -> Iterator[None]:
        """No byte is left during the block."""
        filler = self.folder / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                for size in (len(_PORTION), 4096, 1):
                    with contextlib.suppress(_Full):
                        while True:
                            _write(file.fileno(), _PORTION[:size])
            yield
        finally:
            filler.unlink()

    def remove(self) -> None:
        """Give the file system back with all that is in it."""
        if self.is_small:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


class _Full(Exception):
    pass


def _write(descriptor: int, data: bytes) -> None:
    try:
        os.write(descriptor, data)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _Full from error
