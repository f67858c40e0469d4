"""Joins a Ray cluster that runs already, and watches whether its head still answers."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from tlmd.data.errors import BadInput, ClusterLost, Failed
from tlmd.processes.supervisor import SUPERVISOR

_log = logging.getLogger("tlmd.cluster")

DAEMON = "tlmd"
"""Name of an actor that the daemon of a cluster has: there is one daemon per cluster."""
NAMESPACE = "tlmd"
_OTHER_S = 10.0  # for the actors of a daemon that has died
_LOST_S = 15.0  # without an answer of the head; Ray itself would end this process after 60
_LOST = "the head of the Ray cluster has ended"
_CONNECT_S = 2.0
_CURRENT = Path("/tmp/ray/ray_current_cluster")  # Ray's note of the address
_AGAIN_S = 5.0  # between two attempts to join a cluster


class ClusterHead:
    """The head of the cluster that this process has joined; see `join`."""

    def __init__(self, address: str) -> None:
        self._place = _host_and_port(address)
        self._answered = time.monotonic()
        self._left = threading.Event()
        threading.Thread(target=self._watch, name="head", daemon=True).start()

    def is_there(self) -> bool:
        """Whether it answers now. Raises `ClusterLost` where it has not for some time."""
        silent_s = self._silent_s()
        if silent_s > _LOST_S:
            raise ClusterLost(_LOST)
        return silent_s == 0

    def leave(self) -> None:
        """Watch it no longer."""
        self._left.set()

    def _watch(self) -> None:
        """End this process where the head has ended and a call of Ray in another thread waits.

        Such a call never returns. Everything acknowledged is on disk.
        """
        while not self._left.wait(_AGAIN_S):
            if self._silent_s() > 2 * _LOST_S:
                _log.error("%s", _LOST)
                os._exit(ClusterLost.exit_code)

    def _silent_s(self) -> float:
        """Seconds since its last answer; 0 where it answers now."""
        if _answers(self._place):
            self._answered = time.monotonic()
            return 0.0
        return time.monotonic() - self._answered


def join(address: str, ray: ModuleType, is_stopping: Callable[[], bool]) -> ClusterHead:
    """Join the cluster at `address`. A daemon with a supervisor waits: its head may be restarting.

    Raises `Failed` where no head answers, and `BadInput` where another daemon has the cluster.
    """
    while not _answers(_place_of(address)):
        if SUPERVISOR not in os.environ:
            raise Failed(f"no Ray answers at {address}; `ray start --head` starts one")
        if is_stopping():
            raise Failed(f"stopped before Ray answered at {address}")
        _log.warning("no Ray answers at %s; trying again", address)
        time.sleep(_AGAIN_S)
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False)
    _check_alone(ray)
    return ClusterHead(ray.get_runtime_context().gcs_address)


def _place_of(address: str) -> tuple[str, int] | None:
    """Where the head should answer; None: Ray itself has to find out, or refuses the address."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
        if not address:
            with contextlib.suppress(OSError):
                address = _CURRENT.read_text().strip()
    try:
        return _host_and_port(address)
    except ValueError:
        return None


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _answers(place: tuple[str, int] | None) -> bool:
    """Whether a process listens there. Without a head, `ray.init` would fail only after minutes."""
    try:
        if place is not None:
            socket.create_connection(place, _CONNECT_S).close()
    except OSError:
        return False
    return True


def _check_alone(ray: ModuleType) -> None:
    """Raise `BadInput` where another daemon has the slots of the cluster."""
    deadline = time.monotonic() + _OTHER_S
    while time.monotonic() < deadline:
        try:
            ray.get_actor(DAEMON, namespace=NAMESPACE)
        except ValueError:  # there is none
            return
        time.sleep(_AGAIN_S / 10)
    raise BadInput(
        "another daemon has the slots of this Ray cluster; give it your jobs, or stop it first "
        "(`ray job list`, `ray job stop ID`)"
    )
