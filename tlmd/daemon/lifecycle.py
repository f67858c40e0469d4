"""Starting a daemon in the background and finding the one that runs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tlmd import children
from tlmd.daemon.client import Daemon, find
from tlmd.daemon.state import make_state_dir
from tlmd.errors import Failed, NoDaemon

_START_S = 60.0
_POLL_S = 0.05
_TAIL_BYTES = 4000


def start(
    state_dir: Path,
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    bond: str = "",
) -> Daemon:
    """Start a daemon and wait until it answers (about a second; its actors take longer).

    `flags` are dotted keys of the configuration. By its `bond` a daemon is "owned": it ends with
    this process, however that ends; "private": it is for one job besides; or neither, and lives on.
    Raises `Failed` with the daemon's own words.
    """
    process = launch(state_dir, config, flags, bond)
    return wait_for(state_dir, process)


def launch(
    state_dir: Path,
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    bond: str = "",
) -> subprocess.Popen[bytes]:
    """Start a daemon's process; see `start`."""
    state_dir = make_state_dir(state_dir).absolute()
    (state_dir / "logs").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tlmd.cli", "serve", "--state-dir", str(state_dir)]
    if config is not None:
        command += ["--config", str(Path(config).absolute())]
    if bond:
        command += ["--bond", bond]
    settings = {_variable(key): str(value) for key, value in (flags or {}).items()}
    with open(log_of(state_dir), "ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if bond else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=children.environment(**settings),
            start_new_session=True,  # Ctrl-C is for the command that asked, which tells the daemon
            cwd="/",
        )


def wait_for(state_dir: Path, process: subprocess.Popen[bytes]) -> Daemon:
    """The daemon of a process from `launch`, when it answers. Raises `Failed`."""
    state_dir = Path(state_dir).absolute()
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        daemon = find(state_dir)
        if daemon is not None and daemon.pid == process.pid:
            owned = process if process.stdin is not None else None
            return Daemon(
                state_dir,
                {"url": daemon.url, "pid": daemon.pid, "private": daemon.private},
                owned,
            )
        if process.poll() is not None:
            raise Failed(_last_words(state_dir))
        time.sleep(_POLL_S)
    process.terminate()
    raise Failed(f"the daemon does not answer; see {log_of(state_dir)}")


def running(state_dir: Path) -> Daemon | None:
    """The daemon that takes jobs for a state directory, if one runs.

    Raises `Failed` where a daemon has it that is for one job only.
    """
    daemon = find(Path(state_dir).absolute())
    if daemon is not None and daemon.private:
        raise Failed(f"the state directory {daemon.state_dir} is in use by pid {daemon.pid}")
    return daemon


def connect(state_dir: Path) -> Daemon:
    """The daemon of a state directory. Raises `NoDaemon`."""
    daemon = find(Path(state_dir).absolute())
    if daemon is None:
        raise NoDaemon(f"no daemon runs on {state_dir}; `tlmd start` starts one")
    return daemon


def log_of(state_dir: Path) -> Path:
    """What the daemon says."""
    return state_dir / "logs" / "daemon.log"


def _variable(key: str) -> str:
    """The environment variable of a dotted key of the configuration."""
    return f"TLMD_{key.upper().replace('.', '__')}"


def _last_words(state_dir: Path) -> str:
    """The line in which the daemon said why it could not start."""
    try:
        tail = log_of(state_dir).read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    except OSError:
        tail = ""
    lines = [line for line in tail.splitlines() if line.startswith("tlmd: ")]
    if lines:
        return lines[-1].removeprefix("tlmd: ")
    return f"the daemon did not start; see {log_of(state_dir)}"
