"""The daemon's trace of events, each with its time, in memory and in a file."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import deque
from pathlib import Path
from typing import Any

from tlmd.daemon.log_files import put_aside

_log = logging.getLogger("tlmd")
_KEPT = 2000
_LOGGED = {"joined", "left", "job", "published", "refused", "training_failed", "publish_failed"}
_LOGGED |= {"write_failed", "slot_failed", "training_lost", "start_failed", "overdue"}
_LOGGED |= {"disk_full", "disk_has_room"}


class EventLog:
    """Keeps events, which are dictionaries with ``time`` (seconds since the epoch) and ``kind``.

    A file of `size` bytes is put aside, of which `keep` stay. If the disk is full, lines of the
    file are lost, but the daemon continues. Not thread-safe.
    """

    def __init__(self, path: Path, size: int = 16 << 20, keep: int = 3) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._size, self._keep = path, size, keep
        self._file = path.open("a", buffering=1)
        self.events: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self.counts: dict[str, int] = {}

    def emit(self, kind: str, **facts: Any) -> None:
        """Add an event. The daemon's log has the important kinds, or all with ``--verbose``."""
        event = {"time": round(time.time(), 4), "kind": kind, **facts}
        self.events.append(event)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        level = logging.INFO if kind in _LOGGED else logging.DEBUG
        if _log.isEnabledFor(level):
            text = " ".join(f"{k}={v}" for k, v in facts.items() if v != "")
            _log.log(level, "%s %s", kind, text)
        try:
            self._file.write(json.dumps(event) + "\n")
            if self._file.tell() >= self._size:
                self._file.close()
                put_aside(self._path, self._keep)
                self._file = self._path.open("a", buffering=1)
        except (OSError, ValueError):
            return

    def close(self) -> None:
        """Close the file. On a full disk its last lines are lost."""
        with contextlib.suppress(OSError):
            self._file.close()
