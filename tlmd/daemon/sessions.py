"""Sessions of browsers, which a daemon that was started again still knows."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
from collections import deque
from pathlib import Path

from tlmd.processes.durable import replacing

_KEPT = 100


class Sessions:
    """The newest 100 sessions. Not thread-safe.

    With a `path`, that file keeps them. It has their keyed digests, not the secrets themselves:
    who reads it cannot use a session, and another `token` ends all of them.
    """

    def __init__(self, token: str, path: Path | None = None) -> None:
        self._token = token
        self._path = path
        self._digests: deque[str] = deque(maxlen=_KEPT)
        if path is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):  # browsers need a new link then
                self._digests.extend(path.read_text().split())

    def open(self) -> str:
        """The secret of a new session."""
        secret = secrets.token_urlsafe(24)
        self._digests.append(self._digest(secret))
        if self._path is not None:
            with contextlib.suppress(OSError):  # a full disk: it ends with this daemon
                with replacing(self._path) as new:
                    new.touch(0o600)
                    new.write_text("\n".join(self._digests) + "\n")
        return secret

    def __contains__(self, secret: str) -> bool:
        return self._digest(secret) in self._digests

    def _digest(self, secret: str) -> str:
        return hmac.digest(self._token.encode(), secret.encode(), hashlib.sha256).hex()
