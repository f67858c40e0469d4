"""The head of a Ray cluster ends and comes back: so does the daemon, which goes on."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

import tlmd
from tests.support import endtoend
from tests.support.processes import wait_for
from tests.system.ray_head import RayHead
from tlmd.client.connection import find

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS = {"TLMD_TRAIN__ENABLED": "false", "TLMD_PIPELINE__CHUNK": "2"}


def test_the_head_is_killed_and_started_again(
    small_tlm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    if not full:
        pytest.skip("it takes a minute and a half: with --full, once a week")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    state, log = tmp_path / "state", tmp_path / "log"

    def count(text: str) -> int:
        return log.read_text().count(text)

    with RayHead(tmp_path) as head, log.open("w") as file:
        serve = ["serve", "--restart", "--address", head.address, "--state-dir", state]
        environment = head.environment | SETTINGS
        supervisor = subprocess.Popen(
            endtoend.command(*serve), cwd=endtoend.ROOT, env=environment, stdout=file, stderr=file
        )
        try:
            wait_for(lambda: find(state), 90, "daemon")
            job = tlmd.connect(state).submit(endtoend.LONG, trials=6)
            wait_for(lambda: len(endtoend.candidates(state)) >= 4, 200, "records")
            head.kill()
            wait_for(lambda: count("died (exit code 75)"), 90, "end of the daemon")
            kept = endtoend.candidates(state)
            wait_for(lambda: count("no Ray answers"), 90, "wait for the head")
            head.start()
            wait_for(lambda: count("slot-0 joined") == 2, 90, "slot")
            tlmd.connect(state).job(job.id).wait(timeout=200)
            assert endtoend.run("stop", "--state-dir", state).returncode == 0
            assert supervisor.wait(60) in (0, -signal.SIGTERM)  # `tlmd stop` ends it, too
        finally:
            supervisor.terminate()
            supervisor.wait(120)
            print(log.read_text()[-6000:])
    after = endtoend.candidates(state)
    assert after[: len(kept)] == kept and len(set(after)) == len(after) > len(kept)
    assert count("the head of the Ray cluster has ended") and count("died (") == 1
