"""Stopping and killing `tlmd tune`: everything measured is kept, nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import endtoend, processes
from tests.support.processes import wait_for

pytestmark = pytest.mark.slow

TRIALS = 40  # more than are done before the signal comes


@pytest.fixture(autouse=True)
def _without_trainer(small_tlm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start takes the cores from the measuring, which is what is interrupted here."""
    monkeypatch.setenv("TLMD_TRAIN__ENABLED", "false")
    monkeypatch.setenv("TLMD_PIPELINE__CHUNK", "2")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts the same job, each time in a process group of its own, as a shell would."""
    started: list[subprocess.Popen[str]] = []

    def begin() -> subprocess.Popen[str]:
        flags = ("--trials", TRIALS, "--state-dir", tmp_path / "state")
        process = subprocess.Popen(
            endtoend.command("tune", endtoend.LONG, *flags),
            cwd=endtoend.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if endtoend.children(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def measured(process: subprocess.Popen[str], state: Path, count: int) -> None:
    """Wait until `count` candidates of the running job are in the store."""

    def enough() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return len(endtoend.candidates(state)) >= count

    wait_for(enough, 120, f"{count} records")


def gone(process: subprocess.Popen[str], state: Path) -> bool:
    """Nothing is left of the command and its daemon but Ray's agents, which take a minute."""
    left = [p for p in processes.of(state) if "agent" not in p.lower()]
    return not endtoend.children(process.pid) and not left


def test_interrupted_and_killed_jobs_continue(start: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = start()
    measured(first, state, 3)

    second = endtoend.run("tune", endtoend.LONG, "--state-dir", state)
    assert (second.returncode, second.stdout) == (1, "")
    (line,) = second.stderr.splitlines()
    assert line.startswith(f"tlmd: the state directory {state} is in use by pid ")

    os.killpg(first.pid, signal.SIGINT)  # as Ctrl-C on a terminal does, to all of the group
    _, stderr = first.communicate(timeout=60)
    assert first.returncode == 1
    *progress, line = stderr.splitlines()
    assert all(p.startswith("tlmd: ") and "measured" in p for p in progress)
    assert line == "tlmd: stopped; everything measured is kept, the same command continues"
    wait_for(lambda: gone(first, state), 10, "end of all processes")
    kept = endtoend.candidates(state)
    assert len(kept) >= 3

    killed = start()
    measured(killed, state, len(kept) + 2)
    killed.kill()
    killed.communicate()
    wait_for(lambda: gone(killed, state), 60, "end of all processes")
    assert endtoend.candidates(state)[: len(kept)] == kept

    kept = endtoend.candidates(state)
    flags = ("--trials", TRIALS, "--time-budget", "0.5s", "--state-dir", state, "--json")
    third = endtoend.run("tune", endtoend.LONG, *flags)
    assert third.returncode == 0, third.stderr
    assert all(
        line.startswith("tlmd: ") and "measured" in line for line in third.stderr.splitlines()
    )
    summary = json.loads(third.stdout)
    after = endtoend.candidates(state)
    assert after[: len(kept)] == kept and len(set(after)) == len(after)
    assert summary["measured"] == len(after) and summary["e2e"] is not None


def test_a_termination_while_loading_leaves_nothing(start: Any, tmp_path: Path) -> None:
    process = start()
    log = tmp_path / "state" / "logs" / "tune.log"
    wait_for(lambda: processes.of(tmp_path / "state")[1:], 60, "daemon")
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert [line[:6] for line in stderr.splitlines()] == ["tlmd: "], stderr
    assert log.exists()
    wait_for(lambda: gone(process, tmp_path / "state"), 20, "end of all processes")
