"""The daemon process: `tlmd serve` runs it in the foreground, `tlmd start` in the background."""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from tlmd.daemon.log_files import bound_logs
from tlmd.data.config import Config
from tlmd.data.errors import BadInput, DiskFull, Unavailable
from tlmd.data.state_dir import make_state_dir
from tlmd.processes.children import VERBOSE, ending_signals
from tlmd.processes.durable import replacing
from tlmd.processes.supervisor import SUPERVISOR
from tlmd.version import __version__

_log = logging.getLogger("tlmd")
_LOGS_S = 60.0  # how often the sizes of the logs are looked at
_WAKE_S = 0.5  # how often the main thread wakes up, so that Python can handle signals


def serve(state_dir: Path, config: Config, address: str = "", ownership: str = "") -> int:
    """Run a daemon on `state_dir` until it is stopped, and return the exit code.

    With an `address` the daemon joins that Ray cluster; otherwise it starts a private one. With an
    `ownership` (see `lifecycle.start`) it ends when its standard input ends, that is, when the
    process that started it ends. A private daemon does not continue jobs of earlier daemons. After
    SIGINT, SIGTERM or SIGHUP the daemon finishes the work in flight and ends; after a second signal
    it ends at once. Raises `BadInput` and `Failed`; `ClusterLost` where Ray has died, and
    `Unavailable` where the disk is full.
    """
    try:
        return _serve(state_dir, config, address, ownership)
    except (DiskFull, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSPC:
            raise
        raise Unavailable(f"no space left to write to {state_dir}; free some disk") from error


def _serve(state_dir: Path, config: Config, address: str, ownership: str) -> int:
    state_dir = make_state_dir(state_dir).absolute()
    (state_dir / "logs").mkdir(exist_ok=True)
    level = logging.DEBUG if os.environ.get(VERBOSE) else logging.INFO
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr, force=True
    )
    logging.getLogger("tlmd").setLevel(level)
    from actors.session import Settings
    from tlmd.daemon.http import HttpServer, make_app
    from tlmd.daemon.service import Service

    os.environ["TLMD_STATE_DIR"] = str(state_dir)  # marks every process of this daemon
    private = ownership == "private"
    if not private and not address:
        os.nice(config.daemon.niceness)
    service = Service(state_dir, config, Settings(config, state_dir, address), resume=not private)
    app = make_app(service, _token(state_dir), state_dir / "sessions")
    note = state_dir / "daemon.json"
    try:
        server = HttpServer(app, config.daemon.port or _last_port(note))
    except BadInput:  # another program took the port meanwhile
        if config.daemon.port:
            raise
        server = HttpServer(app, 0)
    _handle_signals(service)
    if ownership:
        threading.Thread(target=_follow_owner, args=(service,), daemon=True).start()
    service.start()
    server.start()
    facts = {"pid": os.getpid(), "url": server.url, "version": __version__, "private": private}
    facts["supervisor"] = int(os.environ.get(SUPERVISOR, 0))
    _write_note(note, facts)
    _log.info("tlmd %s serves %s from %s", __version__, server.url, state_dir)
    try:
        while not service.ready.wait(_WAKE_S) and not service.done.is_set():
            pass
        _handle_signals(service)  # again, because Ray has replaced our handlers by its own
        logs_at = 0.0
        while not service.done.wait(_WAKE_S):
            if time.monotonic() > logs_at + _LOGS_S:
                logs_at = time.monotonic()
                bound_logs(state_dir / "logs", config.daemon.log_bytes, config.daemon.keep_logs)
    finally:
        note.unlink(missing_ok=True)
        server.stop()
    if service.error is not None:
        raise service.error
    _log.info("stopped; everything measured is kept")
    return 0


def _last_port(note: Path) -> int:
    """The port of a daemon that died, on which open pages wait for it; 0 where none died."""
    try:
        return urlsplit(json.loads(note.read_text())["url"]).port or 0
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0


def _token(state_dir: Path) -> str:
    """The secret of the HTTP interface. One per state directory; only its owner can read it."""
    path = state_dir / "token"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        path.chmod(0o600)
        if token := path.read_text().strip():
            return token
        path.unlink()
        return _token(state_dir)
    with os.fdopen(descriptor, "w") as file:
        file.write(token := secrets.token_hex(32))
    return token


def _write_note(path: Path, note: dict[str, Any]) -> None:
    with replacing(path) as new:
        new.write_text(json.dumps(note) + "\n")
        new.chmod(0o600)


def _handle_signals(service: Any) -> None:
    signals = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        service.stop(now=signals > 1)

    for number in ending_signals():
        signal.signal(number, handle)


def _follow_owner(service: Any) -> None:
    os.read(0, 1)  # returns when the owner has closed the stream or has ended
    service.stop()
