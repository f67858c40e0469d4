"""Kill any process of a daemon at any time: it is replaced, and what was measured stays."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tlmd
from tests.support import endtoend, processes
from tests.support.processes import wait_for
from tlmd.client.connection import find

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_tlm")]


def actor(daemon: tlmd.Daemon, kind: str) -> dict[str, Any]:
    """What the status says of the one actor of a kind; empty while there is none."""
    return next((a for a in daemon.status()["actors"] if a["kind"] == kind), {})


def at_work(daemon: tlmd.Daemon, kind: str) -> bool:
    """Whether it has an order, the measurer candidates of one."""
    flying = sum(int(slot["in_flight"]) for slot in daemon.status()["slots"])
    return bool(actor(daemon, kind).get("busy")) and (kind != "measurer" or flying > 0)


def held_at_work(daemon: tlmd.Daemon, kind: str, pid: int) -> bool:
    """Stop it, so that it keeps the order that it has or is given next; whether it has one.

    Stop it again each time: the measuring server lets it go on when a candidate was timed. A slot
    that has only baselines goes on until then: with two of them it is given no candidates.
    """
    os.kill(pid, signal.SIGSTOP)
    if at_work(daemon, kind):
        return True
    if actor(daemon, kind).get("busy"):
        os.kill(pid, signal.SIGCONT)
    return False


def replaced(daemon: tlmd.Daemon, kind: str, pid: int) -> bool:
    return int(actor(daemon, kind).get("pid", pid)) != pid


def test_actors_that_are_killed_at_work_are_replaced_and_no_candidate_is_lost(
    daemon: tlmd.Daemon, job: tlmd.Job
) -> None:
    def more_than(count: int) -> bool:
        return len(endtoend.candidates(daemon.state_dir)) > count

    before = endtoend.candidates(daemon.state_dir)
    running = daemon.submit(endtoend.THIRD, trials=18)
    kept = len(before)
    for kind in ("measurer", "trainer", "generator", "registry"):
        wait_for(partial(more_than, kept), 60, "records")
        kept = len(endtoend.candidates(daemon.state_dir))
        pid = actor(daemon, kind)["pid"]
        try:
            wait_for(partial(held_at_work, daemon, kind, pid), 60, f"order for the {kind}")
        finally:
            os.kill(pid, signal.SIGKILL)
        wait_for(partial(replaced, daemon, kind, pid), 60, f"new {kind}")
        assert daemon.checkpoints() and running.status()["state"] == "running"
    status = running.wait(timeout=120)
    after = endtoend.candidates(daemon.state_dir)
    assert after[: len(before)] == before and len(set(after)) == len(after)
    trials = [task["trials"] for task in status["tasks"]]
    assert len(after) - len(before) == sum(trials) and max(trials) == 18


def new_daemon(state: Path) -> int:
    """The pid of the daemon that answers; 0 while none does."""
    found = find(state)
    return found.pid if found is not None else 0


def _working(state: Path) -> list[str]:
    """Processes of a daemon; Ray's two agents take a minute to see that they are alone."""
    return [p for p in processes.of(state) if "agent" not in p.lower()]


def test_a_killed_daemon_is_started_again_goes_on_and_a_stop_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TLMD_TRAIN__ENABLED", "false")  # its start takes the cores from the rest
    monkeypatch.setenv("TLMD_PIPELINE__CHUNK", "2")
    state = tmp_path / "state"
    assert endtoend.run("start", "--state-dir", state).returncode == 0
    daemon = tlmd.connect(state)
    job_id = daemon.submit(endtoend.LONG, trials=6).id
    wait_for(lambda: len(endtoend.candidates(state)) >= 4, 120, "4 records")
    os.kill(daemon.pid, signal.SIGKILL)
    kept = endtoend.candidates(state)
    wait_for(lambda: new_daemon(state) not in (0, daemon.pid), 60, "new daemon")
    assert tlmd.connect(state).job(job_id).status()["state"] in ("preparing", "running")
    assert endtoend.run("stop", "--now", "--state-dir", state).returncode == 0
    wait_for(lambda: not _working(state), 60, f"end of {_working(state)}")

    agents = processes.of(state)
    scratch = Path(tempfile.mkdtemp(prefix="t"))
    monkeypatch.setenv("TMPDIR", str(scratch))
    failures: list[BaseException] = []

    def again() -> None:
        try:
            with tlmd.start(state) as daemon:
                assert daemon.job(job_id).wait(timeout=200)["state"] == "done"
                assert processes.listening(state)
                assert endtoend.run("stop", "--state-dir", state).returncode == 0
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=again)  # not only the main thread can start one
    thread.start()
    thread.join()
    assert not failures, failures
    after = endtoend.candidates(state)
    assert after[: len(kept)] == kept and len(set(after)) == len(after) > len(kept)
    wait_for(lambda: set(processes.of(state)) <= set(agents), 10, "end of all processes")
    assert not (state / "daemon.json").exists() and not list(scratch.iterdir())
    scratch.rmdir()
