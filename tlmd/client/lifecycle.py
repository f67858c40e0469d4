"""Start a daemon in the background, and find a running daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tlmd.client.connection import Daemon, find, is_alive
from tlmd.data.errors import BadInput, Failed, NoDaemon
from tlmd.data.state_dir import make_state_dir
from tlmd.processes import children
from tlmd.processes.supervisor import supervisor_of
from tlmd.records.store import RecordStore

_START_S = 60.0
_POLL_S = 0.05
_TAIL_BYTES = 4000


def start(
    state_dir: Path,
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    ownership: str = "",
    restart: bool = False,
) -> Daemon:
    """Start a daemon and wait until it answers (about a second; its actors take longer).

    `flags` are dotted keys of the configuration. `ownership` is "owned" (the daemon ends with this
    process, even if this process is killed), "private" (like owned, and the daemon serves one job
    only) or empty (the daemon runs until it is stopped). With `restart`, a supervisor starts it
    again when it has died. Raises `Failed` with the daemon's message.
    """
    process = launch(state_dir, config, flags, ownership, restart)
    return wait_for(state_dir, process)


def launch(
    state_dir: Path,
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    ownership: str = "",
    restart: bool = False,
) -> subprocess.Popen[bytes]:
    """Start the process of a daemon and return at once; see `start`."""
    state_dir = make_state_dir(state_dir).absolute()
    (state_dir / "logs").mkdir(exist_ok=True)
    records = state_dir / "records.sqlite"
    if records.exists():  # a store of an older tlmd is upgraded here, however long that takes
        RecordStore(records, read_only=True).close()
    command = [sys.executable, "-m", "tlmd.cli", "serve", "--state-dir", str(state_dir)]
    if config is not None:
        command += ["--config", str(Path(config).absolute())]
    if restart:
        command += ["--restart"]
    if ownership:
        command += ["--ownership", ownership]
    settings = {_variable(key): str(value) for key, value in (flags or {}).items()}
    with open(log_of(state_dir), "ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if ownership else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=children.environment(**settings),
            start_new_session=True,  # Ctrl-C goes to the command only; the command stops the daemon
            cwd="/",
        )


def wait_for(state_dir: Path, process: subprocess.Popen[bytes]) -> Daemon:
    """Wait until the daemon that `launch` started answers, and return it. Raises `Failed`."""
    state_dir = Path(state_dir).absolute()
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        daemon = find(state_dir)
        if daemon is not None and process.pid in (daemon.pid, daemon.supervisor):
            if process.stdin is not None:  # it ends with this process
                daemon.process = process
            return daemon
        if process.poll() is not None:
            raise Failed(_start_error(state_dir))
        time.sleep(_POLL_S)
    process.terminate()
    raise Failed(f"the daemon does not answer; see {log_of(state_dir)}")


def check_cores(daemon: Daemon, wanted: int | None) -> int:
    """For how many cores a running daemon tunes. Raises `BadInput` if that is not `wanted`."""
    cores = int(daemon.status()["run_cores"])
    if wanted and wanted != cores:
        raise BadInput(
            f"the daemon that runs tunes for {cores} cores, not for {wanted}; stop it first, or "
            "give another --state-dir"
        )
    return cores


def running(state_dir: Path) -> Daemon | None:
    """Return the daemon that takes jobs for a state directory, or None.

    Raises `Failed` if a private daemon runs there, which serves one job only.
    """
    daemon = find(Path(state_dir).absolute())
    if daemon is not None and daemon.private:
        raise Failed(f"the state directory {daemon.state_dir} is in use by pid {daemon.pid}")
    return daemon


def stop(state_dir: Path, now: bool = False) -> int:
    """Stop a daemon and its supervisor, wait until both have ended; the pid of the daemon.

    A supervisor is also stopped while the daemon is dead. Raises `NoDaemon` where neither runs.
    """
    daemon = find(Path(state_dir).absolute())
    supervisor = supervisor_of(Path(state_dir).absolute())
    if daemon is not None:
        daemon.stop(now=now)
    elif not supervisor:
        connect(state_dir)
    if supervisor:
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor, signal.SIGTERM)
        deadline = time.monotonic() + _START_S
        while is_alive(supervisor):
            if time.monotonic() > deadline:
                raise Failed(f"the supervisor (pid {supervisor}) does not end; see its log")
            time.sleep(_POLL_S)
    return daemon.pid if daemon is not None else supervisor


def connect(state_dir: Path) -> Daemon:
    """Return the daemon of a state directory. Raises `NoDaemon`."""
    daemon = find(Path(state_dir).absolute())
    if daemon is None:
        raise NoDaemon(f"no daemon runs on {state_dir}; `tlmd start` starts one")
    return daemon


def log_of(state_dir: Path) -> Path:
    """The path of the daemon's log."""
    return state_dir / "logs" / "daemon.log"


def _variable(key: str) -> str:
    """The environment variable for a dotted key of the configuration."""
    return f"TLMD_{key.upper().replace('.', '__')}"


def _start_error(state_dir: Path) -> str:
    """The line of the log in which the daemon says why it did not start."""
    try:
        tail = log_of(state_dir).read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    except OSError:
        tail = ""
    lines = [line for line in tail.splitlines() if line.startswith("tlmd: ")]
    if lines:
        return lines[-1].removeprefix("tlmd: ")
    return f"the daemon did not start; see {log_of(state_dir)}"
