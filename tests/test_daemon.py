"""The daemon as its users have it: commands, HTTP, Python; stopping, killing, starting again."""

from __future__ import annotations

import http.client
import json
import os
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import tlmd
from tests import endtoend, processes
from tlmd.errors import BadInput, Failed, NoDaemon

SETTINGS = {
    "pipeline.strict": True,
    "pipeline.batch": 4,
    "pipeline.turn": 2,
    "pipeline.chunk": 2,
    "train.steps": 2,
    "train.seconds": 0,
    "generate.over": 2,
    "pipeline.window": 8,
    "pipeline.gain": 0.9,
}


@pytest.fixture(scope="module", autouse=True)
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        path = endtoend.save_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tlm")
        patch.setenv("TLMD_GENERATE__CHECKPOINT", str(path))
        yield


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tlmd.Daemon]:
    """One for all tests that leave it running; every step is strict, so the trace is too."""
    with tlmd.start(tmp_path_factory.mktemp("daemon") / "state", **SETTINGS) as running:
        processes.wait_for(lambda: len(running.status()["actors"]) == 4, 90, "actors")
        yield running


@pytest.fixture(scope="module")
def job(daemon: tlmd.Daemon) -> tlmd.Job:
    """A job that is done."""
    job = daemon.submit(endtoend.MODEL, trials=6)
    assert job.wait(timeout=200)["state"] == "done"
    return job


def command(daemon: tlmd.Daemon, *arguments: object, code: int = 0) -> str:
    done = endtoend.run(*arguments, "--state-dir", daemon.state_dir)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_the_invariant_in_the_trace_of_real_actors(daemon: tlmd.Daemon, job: tlmd.Job) -> None:
    lines = (daemon.state_dir / "trace.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]

    def times(kind: str, key: str) -> dict[int, float]:
        return {e[key]: e["time"] for e in events if e["kind"] == kind}

    training, trained = times("training", "version"), times("trained", "version")
    measuring, measured = times("measuring", "batch"), times("measured", "batch")
    upto = {e["version"]: e["upto"] for e in events if e["kind"] == "training"}
    written = {e["batch"]: e["version"] for e in events if e["kind"] == "written"}
    accepted = {e["version"] for e in events if e["kind"] == "published"}
    shown = 0
    for batch, version in written.items():
        if version == 0:
            continue
        # Batch i+2 was written by a version that had learnt from batches <= i ...
        assert version in accepted and upto[version] <= batch - 2
        # ... while batch i+1 was being measured.
        before = batch - 1
        if upto[version] == batch - 2:
            assert training[version] < measured[before] and measuring[before] < trained[version]
            shown += 1
    assert shown >= 2, events
    assert job.status()["state"] == "done"


def test_a_job_and_what_is_known_of_it(daemon: tlmd.Daemon, job: tlmd.Job) -> None:
    status = job.status()
    assert len(status["tasks"]) >= 3 and all(1 <= t["trials"] <= 6 for t in status["tasks"])
    assert all(t["best_us"] <= t["curve"][0][1] for t in status["tasks"] if t["curve"])
    found = daemon.status()
    keys = {"state", "batch", "version", "lag", "measured", "failed", "rate_per_s"}
    assert keys | {"slots", "actors", "jobs", "convergence"} <= set(found)
    assert found["state"] == "idle" and found["measured"] >= 12
    assert {a["kind"] for a in found["actors"]} == {"generator", "measurer", "trainer", "registry"}
    assert len(set(endtoend.candidates(daemon.state_dir))) == len(
        endtoend.candidates(daemon.state_dir)
    )


def test_commands(daemon: tlmd.Daemon, job: tlmd.Job, tmp_path: Path) -> None:
    assert "idle" in command(daemon, "status")
    assert json.loads(command(daemon, "status", "--json"))["state"] == "idle"
    assert job.id in command(daemon, "jobs")
    assert "done" in command(daemon, "wait", job.id)
    assert "runs already" in command(daemon, "start")
    assert "joined worker=trainer" in command(daemon, "logs")
    assert "measured" in command(daemon, "watch")
    assert "no job 'nothing'" in command(daemon, "wait", "nothing", code=2)
    out = tmp_path / "out"
    document = json.loads(command(daemon, "export", job.id, "--out", out, "--json"))
    whole = document["e2e"]
    assert whole["functions"] == whole["functions_with_record"] and (out / "model.so").exists()


def test_a_campaign_trains_until_it_converges(
    daemon: tlmd.Daemon, job: tlmd.Job, tmp_path: Path
) -> None:
    from tlmd.records.store import RecordStore
    from tlmd.workloads.corpus import save_tasks

    with RecordStore(daemon.state_dir / "records.sqlite", read_only=True) as store:
        save_tasks(tmp_path / "corpus.tasks", store.tasks()[:2])
    before = len(endtoend.candidates(daemon.state_dir))
    flags = ("--corpus", tmp_path / "corpus.tasks", "--until-converged", "--json")
    document = json.loads(command(daemon, "train", *flags))
    # Either it converged, or the two small spaces had nothing more to give.
    assert document["state"] == "done" and document["version"] == daemon.status()["version"]
    assert len(endtoend.candidates(daemon.state_dir)) > before
    assert daemon.status()["convergence"]["window"] == 8
    done = daemon.jobs()[-1]["id"]
    text = command(daemon, "export", done, "--out", tmp_path / "out", code=2)
    assert "a corpus has no model" in text
    assert "no such file" in command(daemon, "train", "--corpus", "nowhere.tasks", code=2)


def test_pause_cancel_and_resume(daemon: tlmd.Daemon, job: tlmd.Job) -> None:
    command(daemon, "pause")
    long = json.loads(command(daemon, "submit", endtoend.LONG, "--trials", 40, "--json"))["id"]
    processes.wait_for(lambda: daemon.job(long).status()["state"] == "running", 60, "lowered model")
    assert daemon.status()["state"] == "paused"
    command(daemon, "resume")
    assert daemon.status()["state"] in ("paused", "running")
    assert "cancelled" in command(daemon, "cancel", long)
    with pytest.raises(Failed, match="cancelled"):
        daemon.job(long).wait(timeout=30)


def test_a_model_that_cannot_be_lowered_fails_its_job_only(daemon: tlmd.Daemon) -> None:
    with pytest.raises(Failed, match="unknown model 'resnet81'"):
        daemon.submit("resnet81").wait(timeout=60)
    with pytest.raises(BadInput, match="trials must be"):
        daemon.submit(endtoend.MODEL, trials=0)
    with pytest.raises(BadInput, match="either a model or a corpus"):
        daemon.submit()
    assert daemon.status()["state"] == "idle"


def test_checkpoints_are_promoted_and_rolled_back(daemon: tlmd.Daemon, job: tlmd.Job) -> None:
    versions = [c["version"] for c in daemon.checkpoints()]
    newest = daemon.status()["version"]
    assert newest >= 1 and {0, newest} <= set(versions)
    assert daemon.rollback(0) == 0
    processes.wait_for(lambda: daemon.status()["version"] == 0, 10, "version 0")
    with pytest.raises(BadInput):
        daemon.promote(999)
    assert f"version {newest} is in force" in command(daemon, "checkpoints", "promote", newest)
    assert "in force kept" in command(daemon, "checkpoints")


def call(daemon: tlmd.Daemon, method: str, path: str, body: Any = None, **headers: str) -> int:
    where = urlsplit(daemon.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_every_call_needs_the_token_and_our_own_name(daemon: tlmd.Daemon) -> None:
    bearer = f"Bearer {daemon.token}"
    for path in ("/v1/status", "/v1/jobs", "/metrics", "/", "/v1/trace", "/nowhere"):
        assert call(daemon, "GET", path) == 401
        assert call(daemon, "GET", path, Authorization="Bearer wrong") == 401
        assert call(daemon, "GET", path, Authorization=bearer, Host="evil.example:80") == 401
    assert call(daemon, "POST", "/v1/stop") == 401
    for path in ("/v1/status", "/v1/jobs", "/metrics", "/", "/v1/trace", "/v1/checkpoints"):
        assert call(daemon, "GET", path, Authorization=bearer) == 200
    assert call(daemon, "GET", f"/?token={daemon.token}") == 303
    assert call(daemon, "POST", "/v1/jobs", "{", Authorization=bearer) == 400
    assert call(daemon, "POST", "/v1/jobs", '{"modle": 1}', Authorization=bearer) == 400
    mode = stat.S_IMODE((daemon.state_dir / "token").stat().st_mode)
    assert mode == 0o600 == stat.S_IMODE((daemon.state_dir / "ray_token").stat().st_mode)


def test_everything_listens_on_loopback_only(daemon: tlmd.Daemon) -> None:
    addresses = {ip for ip, _ in processes.listening(daemon.state_dir)}
    assert addresses and addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.parametrize("kind", ["generator", "measurer", "trainer", "registry"])
def test_a_killed_actor_is_replaced(daemon: tlmd.Daemon, job: tlmd.Job, kind: str) -> None:
    def pid() -> int | None:
        return next((a["pid"] for a in daemon.status()["actors"] if a["kind"] == kind), None)

    before = pid()
    assert before is not None
    os.kill(before, signal.SIGKILL)
    processes.wait_for(lambda: pid() not in (before, None), 60, f"new {kind}")
    assert daemon.checkpoints()


def test_no_daemon() -> None:
    done = endtoend.run("status", "--state-dir", "/nonexistent/tlmd")
    assert done.returncode == 3 and "tlmd start" in done.stderr
    with pytest.raises(NoDaemon):
        tlmd.connect("/nonexistent/tlmd")


def test_a_killed_daemon_goes_on_where_it_was(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert endtoend.run("start", "--state-dir", state).returncode == 0
    daemon = tlmd.connect(state)
    job_id = daemon.submit(endtoend.LONG, trials=12).id
    processes.wait_for(lambda: len(endtoend.candidates(state)) >= 4, 120, "4 records")
    os.kill(daemon.pid, signal.SIGKILL)
    kept = endtoend.candidates(state)
    processes.wait_for(lambda: not _working(state), 60, f"end of {_working(state)}")

    threading.Thread(target=endtoend.run, args=("start", "--state-dir", state)).start()
    processes.wait_for(lambda: len(endtoend.candidates(state)) > len(kept), 60, "new records")
    again = tlmd.connect(state)
    assert again.job(job_id).wait(timeout=200)["state"] == "done"
    assert endtoend.run("stop", "--state-dir", state).returncode == 0
    after = endtoend.candidates(state)
    assert after[: len(kept)] == kept and len(set(after)) == len(after)
    assert not (state / "daemon.json").exists()


def _working(state: Path) -> list[str]:
    """Processes of a daemon; Ray's two agents take a minute to see that they are alone."""
    return [p for p in processes.of(state) if "agent" not in p.lower()]


def test_start_and_stop_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="t"))
    monkeypatch.setenv("TMPDIR", str(scratch))
    failures: list[BaseException] = []

    def cycle() -> None:
        try:
            with tlmd.start(tmp_path / "state") as daemon:
                processes.wait_for(lambda: daemon.status()["actors"], 60, "actors")
                assert processes.listening(tmp_path / "state")
        except BaseException as error:
            failures.append(error)

    cycle()
    thread = threading.Thread(target=cycle)  # a thread will do, too
    thread.start()
    thread.join()
    assert not failures
    processes.wait_for(lambda: not processes.of(tmp_path / "state"), 10, "end of all processes")
    assert not processes.listening(tmp_path / "state")
    assert not list(scratch.iterdir())
    scratch.rmdir()
