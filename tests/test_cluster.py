"""The daemon on Ray clusters: three nodes of which one dies, and as a submitted job."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tlmd
from tests import endtoend, processes

pytestmark = pytest.mark.slow

TRIALS = 6


@pytest.fixture(autouse=True)
def _own_cache(small_tlm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_node_dies_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-m", "tests.three_nodes", str(state), endtoend.LONG, str(TRIALS)]
    done = subprocess.run(
        command, cwd=endtoend.ROOT, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["state"] == "done" and result["error"] == "", result
    assert result["in_flight_when_killed"] > 0 and result["nodes"] == 1 and result["lost"], result
    assert result["twice"] == 0
    assert result["tasks"] and max(result["tasks"]) == TRIALS
    assert sum(result["tasks"]) == result["records"] > result["recorded_when_killed"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def head(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A local head with its dashboard, as `ray start --head` makes it; the environment for it."""
    token = tmp_path / "ray_token"
    token.write_text("0123456789abcdef" * 4)
    token.chmod(0o600)
    gcs, dashboard = free_port(), free_port()
    scratch = tempfile.mkdtemp(prefix="r")  # short: it is part of the paths of sockets
    environment = {
        **os.environ,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "TLMD_STATE_DIR": str(tmp_path / "head"),
    }
    ray = str(Path(sys.executable).parent / "ray")
    command = [ray, "start", "--head", "--block", f"--port={gcs}", f"--dashboard-port={dashboard}"]
    # Jobs are submitted to the agent; another Ray of this machine may have its usual port.
    command += [f"--dashboard-agent-listen-port={free_port()}"]
    command += ["--dashboard-host=127.0.0.1", "--include-dashboard=true", "--num-cpus=2"]
    command += ["--resources", '{"measure":1,"control":1}', f"--temp-dir={scratch}"]
    log = (tmp_path / "head.log").open("w")
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        processes.wait_for(
            lambda: (
                subprocess.run(
                    [ray, "job", "list"], env=environment, capture_output=True, check=False
                ).returncode
                == 0
            ),
            90,
            "head",
        )
        yield environment
    finally:
        process.terminate()
        process.wait(30)
        log.close()
        shutil.rmtree(scratch, ignore_errors=True)


def test_a_submitted_job_runs_and_drains_when_it_is_stopped(
    head: dict[str, str], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    ray = str(Path(sys.executable).parent / "ray")
    settings = {
        "RAY_JOB_STOP_WAIT_TIME_S": "60",
        "PYTHONPATH": str(endtoend.ROOT),
        "TLMD_TRAIN__ENABLED": "false",  # `three_nodes` trains on a cluster
        "TLMD_GENERATE__CHECKPOINT": os.environ["TLMD_GENERATE__CHECKPOINT"],
        "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"],
    }
    serve = [sys.executable, "-m", "tlmd.cli", "serve", "--address", "auto"]
    command = [ray, "job", "submit", "--no-wait", "--submission-id", "tlmd"]
    command += ["--runtime-env-json", json.dumps({"env_vars": settings}), "--"]

    def submitted() -> bool:  # Ray refuses a job until the agent of a node has started
        whole = [*command, *serve, "--state-dir", str(state)]
        done = subprocess.run(whole, env=head, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "No available agent" in done.stderr, done.stderr
        return done.returncode == 0

    processes.wait_for(submitted, 60, "agent of Ray")
    processes.wait_for(lambda: (state / "daemon.json").exists(), 90, "daemon")
    daemon = tlmd.connect(state)
    job = daemon.submit(endtoend.LONG, trials=30)
    processes.wait_for(lambda: len(endtoend.candidates(state)) >= 3, 150, "records")
    assert job.status()["state"] == "running"

    stop = subprocess.run(
        [ray, "job", "stop", "tlmd"], env=head, capture_output=True, text=True, check=False
    )
    assert stop.returncode == 0, stop.stderr
    log = subprocess.run(
        [ray, "job", "logs", "tlmd"], env=head, capture_output=True, text=True, check=False
    )
    assert "everything measured is kept" in log.stdout, log.stdout[-3000:]
    assert not (state / "daemon.json").exists()
    count = len(endtoend.candidates(state))
    time.sleep(1.0)
    assert len(endtoend.candidates(state)) == count >= 3
