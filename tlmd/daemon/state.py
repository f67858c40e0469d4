"""Where tlmd keeps its state."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path

from tlmd.errors import BadInput


def default_state_dir() -> Path:
    """Where state is kept unless `--state-dir` says otherwise: TLMD_STATE_DIR, else user data."""
    return Path(os.environ.get("TLMD_STATE_DIR") or user_data_path("tlmd"))


def make_state_dir(path: Path) -> Path:
    """The directory, made if it was missing; raises `BadInput` where that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot use state directory {path}: {error.strerror}") from error
    return path
