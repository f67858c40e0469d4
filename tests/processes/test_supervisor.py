"""The supervisor: restarts a daemon that died, with growing pauses, and gives up in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.endtoend import ROOT
from tests.support.processes import wait_for
from tlmd.client import lifecycle
from tlmd.client.connection import is_alive
from tlmd.data.errors import NoDaemon, Unavailable
from tlmd.processes.supervisor import RestartPolicy, supervisor_of

# A daemon that does as the files of its state directory say: `codes` has how each one ends.
DAEMON = """
import json, os, pathlib, signal, sys, time
state = pathlib.Path(sys.argv[1])
with (state / "starts").open("a") as file:
    file.write(f"{os.getpid()} {time.monotonic()}\\n")
if not (state / "silent").exists():
    (state / ".note").write_text(json.dumps({"pid": os.getpid()}))
    (state / ".note").rename(state / "daemon.json")
    time.sleep(0.4)
codes = (state / "codes").read_text().split()
code = codes[len((state / "starts").read_text().splitlines()) - 1]
if code == "run":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    (state / "running").touch()
    time.sleep(60)
elif code.startswith("-"):
    os.kill(os.getpid(), -int(code))
sys.exit(int(code))
"""
SUPERVISOR = """
import logging, pathlib, sys
from tlmd.data.errors import Failed
from tlmd.processes.supervisor import RestartPolicy, Supervisor
logging.basicConfig(level=logging.INFO, format="%(message)s")
policy = RestartPolicy(pause_s=float(sys.argv[3]), deaths=4)
state = pathlib.Path(sys.argv[1])
try:
    sys.exit(Supervisor([sys.executable, "-c", sys.argv[2], str(state)], state, policy).run())
except Failed as error:
    sys.exit(f"tlmd: {error}")
"""
Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a supervisor whose daemons end as `codes` say."""
    started: list[subprocess.Popen[str]] = []

    def start(*codes: object, pause: float = 0.05) -> subprocess.Popen[str]:
        (tmp_path / "codes").write_text(" ".join(map(str, codes)))
        process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, str(tmp_path), DAEMON, str(pause)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
    for pid, _ in starts(tmp_path):
        if is_alive(int(pid)):
            os.kill(int(pid), signal.SIGKILL)
    for process in started:
        process.communicate()


def starts(state: Path) -> list[list[str]]:
    file = state / "starts"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def test_a_daemon_that_died_is_started_again_after_growing_pauses(
    begin: Begin, tmp_path: Path
) -> None:
    process = begin(-9, 1, -11, 0, pause=0.1)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0 and len(starts(tmp_path)) == 4
    assert said.splitlines() == [
        "the daemon died (SIGKILL); starting it again in 0.1 s",
        "the daemon died (exit code 1); starting it again in 0.2 s",
        "the daemon died (SIGSEGV); starting it again in 0.4 s",
    ]
    assert RestartPolicy().pause(1) == 1 and RestartPolicy().pause(20) == 60


def test_it_gives_up_with_one_line(begin: Begin, tmp_path: Path) -> None:
    process = begin(*[-9] * 9)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1 and len(starts(tmp_path)) == 4
    last = said.splitlines()[-1]
    assert last.startswith("tlmd: the daemon died 4 times within 10 min, the last time by SIGKILL")


@pytest.mark.slow
def test_what_is_not_there_is_waited_for(begin: Begin, tmp_path: Path) -> None:
    process = begin(*[Unavailable.exit_code] * 6, 0)
    assert process.wait(30) == 0 and len(starts(tmp_path)) == 7


@pytest.mark.parametrize(("codes", "silent"), [((2,), False), ((1,), True)])
def test_a_mistake_is_not_repeated(
    begin: Begin, tmp_path: Path, codes: tuple[int, ...], silent: bool
) -> None:
    if silent:
        (tmp_path / "silent").touch()
    assert begin(*codes, 0).wait(30) == codes[0]
    assert len(starts(tmp_path)) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_both(begin: Begin, tmp_path: Path, number: signal.Signals) -> None:
    process = begin("run", "run")
    wait_for((tmp_path / "running").exists, 30, "daemon")
    assert supervisor_of(tmp_path) == process.pid
    process.send_signal(number)
    assert process.wait(30) == 0 and len(starts(tmp_path)) == 1
    assert supervisor_of(tmp_path) == 0


def test_stop_ends_a_supervisor_whose_daemon_is_dead(begin: Begin, tmp_path: Path) -> None:
    process = begin(-9, "run", pause=30.0)
    wait_for(lambda: len(starts(tmp_path)) == 1, 30, "daemon")
    pid = int(starts(tmp_path)[0][0])
    wait_for(lambda: not is_alive(pid), 30, "death")
    second = begin(-9, "run")
    assert second.wait(30) == 1, "one supervisor for each state directory"
    assert second.stderr is not None and f"pid {process.pid}" in second.stderr.read()
    process_ended = lifecycle.stop(tmp_path)
    assert process_ended == process.pid and process.wait(30) == 0
    assert len(starts(tmp_path)) == 1
    with pytest.raises(NoDaemon):
        lifecycle.stop(tmp_path)


def test_a_killed_supervisor_leaves_its_daemon(begin: Begin, tmp_path: Path) -> None:
    process = begin("run")
    wait_for((tmp_path / "running").exists, 30, "daemon")
    process.kill()
    process.wait(30)
    note = json.loads((tmp_path / "daemon.json").read_text())
    assert is_alive(note["pid"]) and supervisor_of(tmp_path) == 0
