"""What is left of a daemon: its processes and the ports they listen on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


def of(state_dir: Path) -> list[str]:
    """Every living process that a daemon on `state_dir` has started, itself included."""
    mark = f"TLMD_STATE_DIR={state_dir}".encode()
    found = []
    for process in psutil.process_iter(["pid", "name", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE or process.info["pid"] == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{process.info['pid']}/environ").read_bytes()
            command = " ".join(process.cmdline())
        except (OSError, psutil.Error):
            continue
        if mark in environment.split(b"\0") or f"--state-dir {state_dir}" in command:
            found.append(f"{process.info['pid']} {command[:120]}")
    return found


def listening(state_dir: Path) -> set[tuple[str, int]]:
    """Addresses that these processes listen on."""
    pids = {int(line.split()[0]) for line in of(state_dir)}
    return {
        (c.laddr.ip, c.laddr.port)
        for c in psutil.net_connections("tcp")
        if c.pid in pids and c.status == psutil.CONN_LISTEN
    }


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait until `condition` holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.2)  # some conditions look at every process of the machine


def children(pid: int) -> list[int]:
    """Its children's pids."""
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    """It runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
