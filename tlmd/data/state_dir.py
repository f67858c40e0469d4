"""The state directory: the folder in which tlmd keeps its records, jobs, checkpoints and logs."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path

from tlmd.data.errors import BadInput


def default_state_dir() -> Path:
    """Return the state directory that is used without `--state-dir`.

    This is the environment variable TLMD_STATE_DIR or, without it, a folder of the user's data.
    """
    return Path(os.environ.get("TLMD_STATE_DIR") or user_data_path("tlmd"))


def make_state_dir(path: Path) -> Path:
    """Create the directory if it is missing, and return it. Raises `BadInput` if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot use state directory {path}: {error.strerror}; give another one by --state-dir "
            "or TLMD_STATE_DIR"
        ) from error
    return path
