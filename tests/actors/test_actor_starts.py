"""What the worker pool does where actors cannot be started or Ray dies, without starting Ray."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from actors import session
from actors.placement import ActorSpec, Member
from actors.session import Settings
from actors.start_failures import StartFailures
from tests.support.simulated import TARGET
from tlmd.daemon.job_documents import make_spec
from tlmd.data.config import Config
from tlmd.data.errors import ClusterLost, Failed
from tlmd.pipeline.orders import StartFailed, Worker, WorkerKind

TRAINER = ActorSpec("trainer", WorkerKind.TRAINER, "n", True, optional=True)
SLOT = ActorSpec("slot-0", WorkerKind.MEASURER, "n", True)


def test_an_actor_that_may_be_missing_is_tried_again_after_growing_pauses() -> None:
    now = 0.0
    failures = StartFailures(lambda: now)
    pauses = []
    for _ in range(12):
        assert failures.may_start("trainer")
        pauses.append(failures.add(TRAINER, "no CUDA"))
        assert not failures.may_start("trainer")
        now += pauses[-1]
    assert pauses[:4] == [5.0, 10.0, 20.0, 40.0] and pauses[-1] == 600.0
    failures.forget("trainer")
    assert failures.add(TRAINER, "no CUDA") == 5.0


def test_without_a_slot_there_is_nothing_to_do() -> None:
    failures = StartFailures()
    assert failures.add(SLOT, "no gcc") == failures.add(SLOT, "no gcc") == 0.0
    with pytest.raises(Failed, match="slot-0 cannot be started: no gcc"):
        failures.add(SLOT, "no gcc")


def test_the_pool_reports_a_trainer_that_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actors.cluster import Cluster

    pool = Cluster(Settings(Config(), tmp_path))
    monkeypatch.setattr(pool, "_look", lambda: None)
    for life in range(5):
        member = pool._members["trainer"] = Member(TRAINER, life, None, 0.0)
        (event,) = pool._take("trainer", life, None, RuntimeError("no CUDA"))
        assert isinstance(event, StartFailed) and event.error == "no CUDA"
        assert pool._too_early(member.spec)


def test_a_dead_process_of_ray_ends_the_daemon_with_a_code_for_its_supervisor(
    tmp_path: Path,
) -> None:
    raylet = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    settings = Settings(Config(), tmp_path, system=(psutil.Process(raylet.pid),))
    session.check(settings)
    raylet.kill()
    with pytest.raises(ClusterLost, match="`tlmd start` goes on") as caught:
        while True:
            session.check(settings)
    raylet.wait()
    assert caught.value.exit_code == 75


def test_ray_starts_without_processes_that_nobody_uses() -> None:
    from ray._private import parameter, services

    start_api = services.start_api_server
    with session._without_helpers():
        params = parameter.RayParams()
        assert params.no_monitor and not params.include_log_monitor
        assert services.start_api_server() == (None, None)
    assert not parameter.RayParams().no_monitor and services.start_api_server is start_api


def test_a_slot_is_looked_up_in_the_thread_that_changes_the_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster, threads that prepare jobs ask for slots while others join and leave."""
    from tlmd.daemon.service import Service

    service = Service(tmp_path, Config(), Settings(Config(), tmp_path, address="auto"))
    slot = Worker("slot-0", WorkerKind.MEASURER, target=TARGET, resource="measure:big")
    asked: list[threading.Thread] = []

    def workers_of(_kind: Any) -> list[Worker]:
        asked.append(threading.current_thread())
        return [slot]

    service._pipeline = SimpleNamespace(state=SimpleNamespace(workers_of=workers_of))  # type: ignore[assignment]
    monkeypatch.setattr(service, "_update_snapshot", lambda: None)
    found: list[Any] = []
    spec = make_spec({"model": "m", "target": "slot:big"})
    request_of = service._jobs._requests.of
    thread = threading.Thread(target=lambda: found.append(request_of(spec).slot))
    thread.start()
    while thread.is_alive():
        service._answer(0.05)
    service.store.close()
    assert found == [TARGET] and set(asked) == {threading.current_thread()}
