"""`ray start --head` on loopback for tests: with its dashboard, stopped and started again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from tests.support import endtoend, processes

RAY = str(Path(sys.executable).parent / "ray")
_STOP_S = 30


class RayHead:
    """One head node with a slot, whose ports stay the same; a context manager that stops it."""

    def __init__(self, folder: Path, resources: dict[str, int] | None = None) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._resources = resources or {"measure": 1, "control": 1}
        self._token = "0123456789abcdef" * 4
        token = folder / "ray_token"
        token.write_text(self._token)
        token.chmod(0o600)
        self._scratch = tempfile.mkdtemp(prefix="r")  # short: it is part of the paths of sockets
        # Another Ray of this machine may have the usual ports.
        self._gcs, self._dashboard, self._agent = free_port(), free_port(), free_port()
        self.address = f"127.0.0.1:{self._gcs}"
        self.environment = {
            **os.environ,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "RAY_metrics_report_interval_ms": "1000",
            "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{self._dashboard}",
            "PYTHONPATH": str(endtoend.ROOT),
            "TLMD_STATE_DIR": str(folder / "head"),
        }

    def __enter__(self) -> RayHead:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def start(self) -> None:
        """Start it and wait until it takes jobs."""
        command = [RAY, "start", "--head", "--block", f"--port={self._gcs}"]
        command += [f"--dashboard-port={self._dashboard}", "--dashboard-host=127.0.0.1"]
        command += [f"--dashboard-agent-listen-port={self._agent}", "--include-dashboard=true"]
        command += ["--num-cpus=2", "--resources", json.dumps(self._resources)]
        command += [f"--temp-dir={self._scratch}"]
        with (self._folder / "head.log").open("a") as log:
            self._process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        processes.wait_for(self._takes_jobs, 120, "head")

    def _takes_jobs(self) -> bool:
        try:
            self.job("")
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """Kill it with all processes that it has started, as a power failure does."""
        assert self._process is not None
        own = psutil.Process(self._process.pid)
        for process in [own, *own.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(_STOP_S)
        self._process = None

    def ray(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``ray ARGUMENTS``."""
        command = [RAY, *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )

    def submit(self, name: str, settings: dict[str, str], *entrypoint: str) -> None:
        """``ray job submit`` with environment variables; returns when Ray has the job."""
        command = ["job", "submit", "--no-wait", "--submission-id", name]
        command += ["--runtime-env-json", json.dumps({"env_vars": settings}), "--", *entrypoint]

        def submitted() -> bool:  # Ray refuses a job until the agent of a node has started
            done = self.ray(*command)
            assert done.returncode == 0 or "No available agent" in done.stderr, done.stderr
            return done.returncode == 0

        processes.wait_for(submitted, 60, "agent of Ray")

    def job(self, name: str) -> Any:
        """What Ray says of a job that was submitted; of all, where `name` is empty. Asking by HTTP
        takes no core from what it starts, which the command line does for a second each time."""
        url = f"http://127.0.0.1:{self._dashboard}/api/jobs/{name}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def nodes(self) -> list[dict[str, Any]]:
        """What Ray says of its nodes."""
        code = (
            "import json, ray; ray.init('%s', log_to_driver=False); print(json.dumps(ray.nodes()))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code % self.address],
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
