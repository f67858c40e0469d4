"""Where tlmd keeps its state."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path


def default_state_dir() -> Path:
    """Where state is kept unless `--state-dir` says otherwise: TLMD_STATE_DIR, else user data."""
    return Path(os.environ.get("TLMD_STATE_DIR") or user_data_path("tlmd"))
