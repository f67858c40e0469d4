"""What is written must be on disk before anything relies on it."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file, or the file names of a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
