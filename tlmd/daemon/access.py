"""Who may call the daemon: programs that have the token, and browsers that opened a link of it.

A browser sends a cookie to all ports of a host, and any local page can send a form. Therefore the
cookie is not the token, and what comes with it may only read.
"""

from __future__ import annotations

import hmac
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.requests import Request

from tlmd.daemon.sessions import Sessions

_HOSTS = {"127.0.0.1", "localhost", "[::1]"}  # other names: a DNS rebinding attack
_LINK_S = 600.0  # how long a link works
_KEPT = 100  # links
_READING = {"GET", "HEAD"}


class AccessControl:
    """Decides about requests. Thread-safe. `clock` gives seconds."""

    def __init__(
        self,
        token: str,
        clock: Callable[[], float] = time.monotonic,
        sessions: Sessions | None = None,
    ) -> None:
        self._token = token
        self._clock = clock
        self._lock = threading.Lock()
        self._links: OrderedDict[str, float] = OrderedDict()  # -> when it ends
        self._sessions = sessions or Sessions(token)

    def make_link(self) -> str:
        """A secret that opens the page once, within ten minutes."""
        secret = secrets.token_urlsafe(24)
        with self._lock:
            self._links[secret] = self._clock() + _LINK_S
            while len(self._links) > _KEPT:
                self._links.popitem(last=False)
        return secret

    def open_session(self, link: str) -> str | None:
        """The secret of a new session; None if the link is unknown, used or too old."""
        with self._lock:
            if self._links.pop(link, -math.inf) < self._clock():
                return None
            return self._sessions.open()

    def allows(self, request: Request) -> bool:
        """Whether a request may be answered."""
        host = request.headers.get("host", "")
        if host.rpartition(":")[0] not in _HOSTS:
            return False
        if request.headers.get("origin", f"http://{host}") != f"http://{host}":
            return False  # a page of another site or port
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return hmac.compare_digest(bearer.encode(), self._token.encode())
        if request.method not in _READING:
            return False
        if request.url.path == "/" and "link" in request.query_params:
            return True  # the page's route opens the session, or refuses
        with self._lock:
            return request.cookies.get(cookie_name(request), "") in self._sessions


def cookie_name(request: Request) -> str:
    """The name of the session's cookie: daemons on other ports have other ones."""
    return f"tlmd_{request.url.port}"
