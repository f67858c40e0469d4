"""The daemon as a job that is submitted to a Ray cluster."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import tlmd
from tests.support import endtoend, processes
from tests.system.ray_head import RayHead

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _own_cache(small_tlm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def head(tmp_path: Path) -> Iterator[RayHead]:
    with RayHead(tmp_path) as head:
        yield head


def test_a_submitted_job_runs_and_drains_when_it_is_stopped(head: RayHead, tmp_path: Path) -> None:
    state = tmp_path / "state"
    settings = {
        "RAY_JOB_STOP_WAIT_TIME_S": "60",
        "TLMD_TRAIN__ENABLED": "false",
        "TLMD_GENERATE__CHECKPOINT": os.environ["TLMD_GENERATE__CHECKPOINT"],
        "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"],
        "PYTHONPATH": str(endtoend.ROOT),
    }
    serve = endtoend.command("serve", "--address", "auto", "--state-dir")
    head.submit("tlmd", settings, *serve, str(state))
    processes.wait_for(lambda: (state / "daemon.json").exists(), 90, "daemon")
    daemon = tlmd.connect(state)
    job = daemon.submit(endtoend.LONG, trials=4000)  # runs on until it is stopped
    processes.wait_for(lambda: len(endtoend.candidates(state)) >= 3, 150, "records")
    assert job.status()["state"] == "running"

    daemon.pause()  # what follows starts many processes
    _check_second_submissions(head, settings, serve, state, tmp_path / "other")
    _check_refused_target(state)
    daemon.resume()
    _check_exported_figures(head, daemon)
    assert job.status()["state"] == "running"

    stop = head.ray("job", "stop", "tlmd")
    assert stop.returncode == 0, stop.stderr
    log = head.ray("job", "logs", "tlmd")
    assert "everything measured is kept" in log.stdout, log.stdout[-3000:]
    assert not (state / "daemon.json").exists()
    count = len(endtoend.candidates(state))
    time.sleep(1.0)
    assert len(endtoend.candidates(state)) == count >= 3


def _check_second_submissions(
    head: RayHead, settings: dict[str, str], serve: list[str], state: Path, other: Path
) -> None:
    """A second daemon is refused, on the same state directory and on another one."""
    head.submit("again", settings, *serve, str(state))
    head.submit("other", settings, *serve, str(other))
    for name, reason in (
        ("again", f"the state directory {state} is in use by pid"),
        ("other", "another daemon has the slots of this Ray cluster"),
    ):
        processes.wait_for(partial(_has_failed, head, name), 150, f"end of {name}")
        told = head.job(name)["message"].splitlines()
        (line,) = [line for line in told if line.startswith("tlmd: ")]
        assert reason in line


def _has_failed(head: RayHead, name: str) -> bool:
    return bool(head.job(name)["status"] == "FAILED")


def _check_refused_target(state: Path) -> None:
    done = endtoend.run("submit", endtoend.MODEL, "--target", "slot:gpu", "--state-dir", state)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "no slot can run the target 'slot:gpu'; there are slots without" in line


def _check_exported_figures(head: RayHead, daemon: tlmd.Daemon) -> None:
    """Ray's agent exports what `/metrics` says, seconds later; one page may lack some of it."""
    (node,) = head.nodes()
    url = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"
    figures: dict[str, float] = {}

    def scraped() -> bool:
        text = urllib.request.urlopen(url, timeout=20).read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith("ray_tlmd_"):
                    own = {k: sample.labels[k] for k in ("state", "kind") if k in sample.labels}
                    label = "".join(own.values())
                    figures[f"{sample.name.removeprefix('ray_tlmd_')} {label}".strip()] = (
                        sample.value
                    )
        resumed = figures.get("state running") == 1 and figures.get("jobs running") == 1
        return resumed and figures.get("measured_total", 0) >= 3 and len(figures) >= 20

    processes.wait_for(scraped, 60, "figures")
    after = daemon.status()
    assert 0 < figures["measured_total"] <= after["measured"]
    assert figures.get("failed_total", 0) <= after["failed"]
    assert figures["slots"] == 1 and 0 <= figures["slots_busy"] <= 1 and figures["rate"] >= 0
    assert figures["version"] == after["version"]
    assert figures["actors generator"] >= 1
    assert figures["candidates queued"] + figures["candidates in_flight"] >= 0
