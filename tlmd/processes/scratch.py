"""The folder in which Ray keeps its sockets, whose paths must be short and in ASCII."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tlmd.data.errors import BadInput

_LONGEST = 107  # characters of the path of a unix socket
# What Ray appends: a folder of ours, one with the time and the pid, and the name of a socket.
_APPENDED = len("/tlmd-01234567/session_2026-11-29_12-00-00_000000_4194304/sockets/plasma_store")
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")


def folder_for_sockets() -> str:
    """TMPDIR, or a short folder if its name does not suit. Raises `BadInput` if there is none."""
    given = tempfile.gettempdir()
    if _suits(given):
        return given
    for folder in _SHORT:
        if Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return folder
    most = _LONGEST - _APPENDED
    raise BadInput(f"TMPDIR {given} is too long or not ASCII; set it to one of {most} letters")


def note() -> str:
    """What the user is told if the folder is not TMPDIR; empty if it is."""
    folder = folder_for_sockets()
    if folder == tempfile.gettempdir():
        return ""
    return f"TMPDIR is too long or not ASCII for the sockets of Ray; they are in {folder}"


def _suits(folder: str) -> bool:
    return folder.isascii() and len(folder) + _APPENDED <= _LONGEST
