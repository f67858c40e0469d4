"""The trace of a daemon: what happened when, with version and batch; in memory and on disk."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from pathlib import Path
from typing import Any

_log = logging.getLogger("tlmd")
_KEPT = 2000
_LARGE = 16 << 20  # bytes of the file; then it starts anew
_LOUD = {"joined", "left", "job", "published", "refused", "training_failed", "publish_failed"}
_LOUD |= {"write_failed", "slot_failed", "training_lost"}


class Trace:
    """Events as dictionaries with ``time`` (seconds since the epoch) and ``kind``.

    A full disk loses lines of the file, not the daemon.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        large = path.exists() and path.stat().st_size > _LARGE
        self._file = path.open("w" if large else "a", buffering=1)
        self.events: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self.counts: dict[str, int] = {}

    def tell(self, kind: str, **facts: Any) -> None:
        """Add an event."""
        event = {"time": round(time.time(), 4), "kind": kind, **facts}
        self.events.append(event)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind in _LOUD:
            _log.info("%s %s", kind, " ".join(f"{k}={v}" for k, v in facts.items() if v != ""))
        try:
            self._file.write(json.dumps(event) + "\n")
        except (OSError, ValueError):
            return

    def close(self) -> None:
        """Close the file."""
        self._file.close()
