"""The daemon process: `tlmd serve` in the foreground, which `tlmd start` puts in the background."""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tlmd import __version__
from tlmd.config import Config
from tlmd.daemon.state import make_state_dir
from tlmd.errors import Failed

_log = logging.getLogger("tlmd")
_WAKE_S = 0.5  # between two looks of the main thread, in which signals are handled


def serve(state_dir: Path, config: Config, address: str = "", bond: str = "") -> int:
    """Run a daemon on `state_dir` until it is stopped; the exit code.

    `address` joins a Ray cluster instead of starting a private one. A daemon with a `bond` (see
    `lifecycle.start`) ends when its standard input does, that is with the process that started it;
    a private one does not go on with jobs of earlier ones. SIGINT and SIGTERM drain; a
    second one does not wait for what is in flight. Raises `BadInput` and `Failed`.
    """
    state_dir = make_state_dir(state_dir).absolute()
    (state_dir / "logs").mkdir(exist_ok=True)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr, force=True
    )
    from actors.session import Settings
    from tlmd.daemon.http import Server, make_app
    from tlmd.daemon.service import Service

    os.environ["TLMD_STATE_DIR"] = str(state_dir)  # marks every process of this daemon
    private = bond == "private"
    service = Service(state_dir, config, Settings(config, state_dir, address), resume=not private)
    token = _token(state_dir)
    server = Server(make_app(service, token), config.daemon.port)
    _handle_signals(service)
    if bond:
        threading.Thread(target=_follow_owner, args=(service,), daemon=True).start()
    service.start()
    server.start()
    note = state_dir / "daemon.json"
    facts = {"pid": os.getpid(), "url": server.url, "version": __version__, "private": private}
    _write_note(note, facts)
    _log.info("tlmd %s serves %s from %s", __version__, server.url, state_dir)
    try:
        while not service.ready.wait(_WAKE_S) and not service.done.is_set():
            pass
        _handle_signals(service)  # Ray has put its own handlers in place of ours
        while not service.done.wait(_WAKE_S):
            pass
    finally:
        note.unlink(missing_ok=True)
        server.stop()
    if service.error:
        raise Failed(service.error)
    _log.info("stopped; everything measured is kept")
    return 0


def _token(state_dir: Path) -> str:
    """The secret of the HTTP interface, made once per state directory, for its owner's eyes."""
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
    partial = path.with_name(".daemon.json")
    partial.write_text(json.dumps(note) + "\n")
    partial.chmod(0o600)
    partial.replace(path)


def _handle_signals(service: Any) -> None:
    signals = 0

    def handle(_number: int, _frame: Any) -> None:
        nonlocal signals
        signals += 1
        service.stop(now=signals > 1)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def _follow_owner(service: Any) -> None:
    os.read(0, 1)  # returns at the end of the stream
    service.stop()
