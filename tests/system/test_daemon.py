"""The daemon as its users have it: commands, HTTP, Python. All tests share one that runs on."""

from __future__ import annotations

import http.client
import json
import os
import stat
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import tlmd
from tests.support import endtoend, processes
from tlmd import cli
from tlmd.data.errors import BadInput, Failed, NoDaemon

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_tlm")]


def trace(daemon: tlmd.Daemon) -> list[dict[str, Any]]:
    lines = (daemon.state_dir / "trace.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def in_flight(daemon: tlmd.Daemon) -> int:
    return sum(int(slot["in_flight"]) for slot in daemon.status()["slots"])


def command(daemon: tlmd.Daemon, *arguments: object, code: int = 0) -> str:
    done = endtoend.run(*arguments, "--state-dir", daemon.state_dir)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def trainer_joined(daemon: tlmd.Daemon) -> bool:
    return any(e["kind"] == "joined" and e["worker"] == "trainer" for e in trace(daemon))


def test_the_invariant_in_the_trace_of_real_actors(daemon: tlmd.Daemon, job: tlmd.Job) -> None:
    # On a fast machine `job` is done before the trainer has joined: a second one runs with it.
    processes.wait_for(lambda: trainer_joined(daemon), 60, "trainer")
    job = daemon.submit(endtoend.FOURTH, trials=4)
    assert job.wait(timeout=120)["state"] == "done"
    events = trace(daemon)
    end = next(i for i, e in enumerate(events) if e["kind"] == "job" and e["job"] == job.id)
    events = events[: end + 1]  # other jobs of this daemon may have come since

    def times(kind: str, key: str) -> dict[int, float]:
        return {e[key]: e["time"] for e in events if e["kind"] == kind}

    training, trained = times("training", "version"), times("trained", "version")
    measuring, measured = times("measuring", "batch"), times("measured", "batch")
    decided = times("published", "version") | times("refused", "version")
    accepted = times("published", "version")
    planned = {e["batch"]: e for e in events if e["kind"] == "planned"}
    upto = {e["version"]: e["upto"] for e in events if e["kind"] == "training"}
    joined = next(e["time"] for e in events if e["kind"] == "joined" and e["worker"] == "trainer")
    kinds = {"joined", "left", "overdue", "training_lost", "training_failed", "publish_failed"}
    ends = [e for e in events if e["kind"] in kinds]  # says why a version was not decided
    shown = 0
    for batch, plan in planned.items():
        # Batch i+2 is written by a version that has learnt from batches <= i ...
        if plan["version"]:
            assert upto[plan["version"]] <= batch - 2
            assert accepted[plan["version"]] <= plan["time"]
        before = batch - 1
        if batch < 2 or joined > measuring.get(before, 0.0):
            continue  # the trainer was not there yet, or nothing of that batch was measured
        # ... namely from all of them: what was learnt from batch i is accepted or refused ...
        newest = next(version for version, last in upto.items() if last == batch - 2)
        assert newest in decided, (newest, ends)
        assert decided[newest] <= plan["time"]
        assert plan["version"] == max(v for v in accepted if v <= newest)
        # ... and it was trained while batch i+1 was measured.
        assert training[newest] < measured[before] and measuring[before] < trained[newest]
        shown += 1
    assert shown >= 2, events
    assert job.status()["state"] == "done"


def test_a_job_and_what_is_known_of_it(daemon: tlmd.Daemon, job: tlmd.Job) -> None:
    status = job.status()
    assert len(status["tasks"]) >= 3 and all(1 <= t["trials"] <= 3 for t in status["tasks"])
    # The winner is timed again with the finalists, so it may be slower than its first time.
    assert all(t["best_us"] > 0 for t in status["tasks"] if t["curve"])
    for curve in ([us for _, us in t["curve"]] for t in status["tasks"]):
        assert curve == sorted(curve, reverse=True) and all(us > 0 for us in curve)
    found = daemon.status()
    keys = {"state", "batch", "version", "lag", "measured", "failed", "rate_per_s"}
    assert keys | {"slots", "actors", "jobs", "convergence"} <= set(found)
    assert found["state"] == "idle" and found["measured"] >= 12
    assert {a["kind"] for a in found["actors"]} == {"generator", "measurer", "trainer", "registry"}
    assert len(set(endtoend.candidates(daemon.state_dir))) == len(
        endtoend.candidates(daemon.state_dir)
    )


def test_all_of_a_daemon_that_stays_lets_others_go_first(
    daemon: tlmd.Daemon, job: tlmd.Job
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    pids = [daemon.pid, *(actor["pid"] for actor in daemon.status()["actors"])]
    assert len(pids) > 3
    assert all(os.getpriority(os.PRIO_PROCESS, pid) > own for pid in pids)


def test_commands(daemon: tlmd.Daemon, job: tlmd.Job) -> None:
    assert "idle" in command(daemon, "status")
    assert json.loads(command(daemon, "status", "--json"))["state"] == "idle"
    assert job.id in command(daemon, "jobs")
    assert "done" in command(daemon, "wait", job.id)
    assert "runs already" in command(daemon, "start")
    assert "joined worker=trainer" in command(daemon, "logs")
    assert "measured" in command(daemon, "watch")
    assert "no job 'nothing'" in command(daemon, "wait", "nothing", code=2)


def test_a_job_is_exported_by_command(
    daemon: tlmd.Daemon, job: tlmd.Job, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", job.id, "--out", tmp_path / "out", "--json", "--state-dir"]
    with endtoend.known_roofline():
        assert cli.main([*map(str, arguments), str(daemon.state_dir)]) == 0
    whole = json.loads(capfd.readouterr().out)["e2e"]
    assert whole["functions"] == whole["functions_with_record"]
    assert (tmp_path / "out" / "model.so").exists()


def test_a_campaign_trains_until_it_converges(
    daemon: tlmd.Daemon, job: tlmd.Job, tmp_path: Path
) -> None:
    from tlmd.records.store import RecordStore
    from tlmd.records.task_file import save_tasks

    with RecordStore(daemon.state_dir / "records.sqlite", read_only=True) as store:
        largest = sorted(store.tasks(), key=lambda task: task.flops)[-2:]  # of many programs
    save_tasks(tmp_path / "corpus.tasks", largest)
    before = len(endtoend.candidates(daemon.state_dir))
    trained = [e["kind"] for e in trace(daemon)].count("trained")
    flags = ("--corpus", tmp_path / "corpus.tasks", "--until-converged", "--json")
    document = json.loads(command(daemon, "train", *flags))
    assert (document["state"], document["reason"]) == ("done", "converged")
    assert document["version"] <= daemon.status()["version"]  # the last one may come afterwards
    assert len(endtoend.candidates(daemon.state_dir)) >= before + 8
    assert [e["kind"] for e in trace(daemon)].count("trained") > trained
    # Slots may still hold candidates of its last batches, and the trainer their records.
    processes.wait_for(lambda: daemon.status()["state"] != "running", 120.0, "an idle daemon")
    found = daemon.status()
    assert found["state"] == "converged" and found["jobs"][-1]["reason"] == "converged"
    convergence = found["convergence"]
    assert (convergence["window"], convergence["limit"]) == (8, 0.9)
    assert convergence["converged"] and convergence["gain"] < convergence["limit"]
    done = daemon.jobs()[-1]["id"]
    text = command(daemon, "export", done, "--out", tmp_path / "out", code=2)
    assert "a corpus has no model" in text
    assert "no such file" in command(daemon, "train", "--corpus", "nowhere.tasks", code=2)


def test_a_pause_ends_the_measuring_and_a_resume_begins_it_again(
    daemon: tlmd.Daemon, job: tlmd.Job
) -> None:
    def count() -> int:
        return len(endtoend.candidates(daemon.state_dir))

    daemon.pause()
    before = count()
    long = daemon.submit(endtoend.LONG, trials=40)
    processes.wait_for(lambda: long.status()["state"] == "running", 60, "lowered model")
    time.sleep(2.0)  # a batch takes one
    assert (daemon.status()["state"], count()) == ("paused", before)
    assert "resumed" in command(daemon, "resume")
    processes.wait_for(lambda: count() >= before + 4, 60, "records after the resume")
    assert daemon.status()["state"] == "running"

    assert "paused" in command(daemon, "pause")
    processes.wait_for(lambda: not in_flight(daemon), 30, "end of what is in flight")
    before = count()
    time.sleep(2.0)
    assert (daemon.status()["state"], count()) == ("paused", before)
    daemon.resume()
    processes.wait_for(lambda: count() > before, 60, "records after the second resume")
    assert "cancelled" in command(daemon, "cancel", long.id)
    with pytest.raises(Failed, match="cancelled"):
        long.wait(timeout=30)


def test_a_model_that_cannot_be_lowered_fails_its_job_only(daemon: tlmd.Daemon) -> None:
    with pytest.raises(Failed, match="unknown model 'resnet81'"):
        daemon.submit("resnet81").wait(timeout=60)
    said = command(daemon, "submit", "tests.support.difficult_models:raises", code=2)
    assert "factory tests.support.difficult_models:raises failed" in said.splitlines()[-1]
    with pytest.raises(BadInput, match="trials must be"):
        daemon.submit(endtoend.MODEL, trials=0)
    with pytest.raises(BadInput, match="either a model or a corpus"):
        daemon.submit()
    processes.wait_for(lambda: daemon.status()["state"] == "idle", 10, "rest")


def test_a_running_model_gets_faster_by_the_daemon(daemon: tlmd.Daemon, job: tlmd.Job) -> None:
    import torch

    from tests.integrations.test_torch import Slow

    torch.manual_seed(0)
    x = torch.randn(3, 16)
    before = len(daemon.jobs())
    fast = tlmd.optimize(Slow().eval(), x, state_dir=daemon.state_dir)
    (function,) = fast.functions.values()
    compiled = 0

    def improve() -> bool:
        nonlocal compiled
        compiled += 1
        return type(function).improve(function)

    function.improve = improve  # type: ignore[method-assign]
    processes.wait_for(lambda: len(daemon.jobs()) > before, 60, "job")
    processes.wait_for(lambda: daemon.jobs()[-1]["state"] == "done", 200, "end of the job")
    processes.wait_for(lambda: compiled > 0, 60, "second compile")
    with torch.no_grad():
        torch.testing.assert_close(fast(x), fast.original(x))
    # A second start is compiled with what was measured.
    again = tlmd.optimize(Slow().eval(), x, state_dir=daemon.state_dir, background=False)
    assert not next(iter(again.functions.values())).reason


def test_checkpoints_are_promoted_and_rolled_back(daemon: tlmd.Daemon, job: tlmd.Job) -> None:
    versions = [c["version"] for c in daemon.checkpoints()]
    newest = daemon.status()["version"]
    assert newest >= 1 and {0, newest} <= set(versions)
    assert daemon.rollback(0) == 0
    processes.wait_for(lambda: daemon.status()["version"] == 0, 10, "version 0")
    with pytest.raises(BadInput):
        daemon.promote(999)
    assert f"version {newest} is in force" in command(daemon, "checkpoints", "promote", newest)
    assert "in force, pinned, kept" in command(daemon, "checkpoints")
    assert f"version {newest} is in force until" in command(daemon, "checkpoints", "unpin")
    assert "in force, kept" in command(daemon, "checkpoints")


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
    link = urlsplit(daemon.page_link())
    assert call(daemon, "GET", f"{link.path}?{link.query}") == 303
    assert call(daemon, "GET", f"{link.path}?{link.query}") == 401, "a link works once"
    assert call(daemon, "GET", f"/?token={daemon.token}") == 401
    for body in ("{", '{"modle": 1}'):
        kind = {"Content-Type": "application/json"}
        assert call(daemon, "POST", "/v1/jobs", body, Authorization=bearer, **kind) == 400
    plain = {"Content-Type": "text/plain"}
    assert call(daemon, "POST", "/v1/jobs", "{}", Authorization=bearer, **plain) == 400
    mode = stat.S_IMODE((daemon.state_dir / "token").stat().st_mode)
    assert mode == 0o600 == stat.S_IMODE((daemon.state_dir / "ray_token").stat().st_mode)


def test_everything_listens_on_loopback_only(daemon: tlmd.Daemon) -> None:
    addresses = {ip for ip, _ in processes.listening(daemon.state_dir)}
    assert addresses and addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_no_daemon() -> None:
    done = endtoend.run("status", "--state-dir", "/nonexistent/tlmd")
    assert done.returncode == 3 and "tlmd start" in done.stderr
    with pytest.raises(NoDaemon):
        tlmd.connect("/nonexistent/tlmd")
