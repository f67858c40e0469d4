"""The measuring server's processes: who ends when, and what is lost then (nothing)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import alive, children, wait_for
from tests.support.traps import (
    TRAPS,
    N,
    gemm_trial,
    healthy,
    outcome_of,
    outcomes_of,
    put_reference,
    trial,
    vector_module,
)
from tlmd.data.config import MeasureConfig
from tlmd.data.types import Status
from tlmd.measure.cores.core_plan import plan_cores
from tlmd.measure.measurer import Measurer
from tlmd.measure.protocol import MeasureRequest
from tlmd.measure.server.forked import ForkedChild, core_wait_s

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc"),
]


def test_a_killed_server_is_replaced_and_no_job_is_lost(measurer: Measurer) -> None:
    trials = [gemm_trial("gemm") for _ in range(6)]
    futures = [measurer.submit(one.task, one.input) for one in trials]
    futures[0].result()
    old = measurer.server_pid
    assert old is not None
    orphans = children(old)
    os.kill(old, signal.SIGKILL)
    assert all(future.result().ok for future in futures)
    assert measurer.server_pid != old
    wait_for(lambda: not any(map(alive, orphans)), 10, "end of all")


def test_a_job_that_kills_two_servers_fails_and_others_do_not(
    measurer: Measurer, cache: Path
) -> None:
    put_reference(cache, "killer", np.zeros(N))
    kill = 'T.Cast("float32", T.call_extern("int32", "kill", T.call_extern("int32", "getppid"), 9))'
    trials = [healthy(), trial("killer", vector_module(kill)), healthy(), healthy()]
    for one, outcome in zip(trials, outcomes_of(measurer, trials), strict=True):
        kills = one.task.name == "killer"
        assert outcome.status is (Status.CRASH if kills else Status.OK), outcome


def test_building_has_its_own_time_limit(cache: Path) -> None:
    config = MeasureConfig(build_timeout=0.004, baseline_timeout=2, run_timeout=2, builders=1)
    with Measurer(plan_cores(), cache / "slow", config) as one:
        outcome = outcome_of(one, gemm_trial("gemm"))
        assert outcome.status is Status.TIMEOUT and "building" in outcome.detail
        pids = [one.server_pid]
    assert not any(alive(pid) for pid in pids if pid)


def test_a_child_loses_no_time_while_others_have_its_core() -> None:
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    codes = [spin, spin, "import time; time.sleep(1000)"]
    programs = [subprocess.Popen([sys.executable, "-c", code]) for code in codes]
    try:
        wait_for(lambda: core_wait_s(programs[0].pid) > 0.2, 60, "wait for the core")
        request = MeasureRequest(1, ("task",), ())
        busy, sleeps = (ForkedChild(p.pid, -1, -1, request) for p in programs[1:])
        sleeps.set_deadline(1.0)
        busy.deadline = before = 1.0
        wait_for(lambda: core_wait_s(busy.pid) > 0.2, 60, "wait for the core")
        assert busy.extend_deadline() and busy.deadline >= before + 0.2
        assert not sleeps.extend_deadline()
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert core_wait_s(programs[0].pid) == 0
    assert not ForkedChild(programs[0].pid, -1, -1, request).extend_deadline()


def test_close_ends_hanging_children(tmp_path: Path) -> None:
    with Measurer(plan_cores(), tmp_path, MeasureConfig(run_timeout=60)) as one:
        put_reference(tmp_path, "hang", np.zeros(N))
        hang = trial("hang", vector_module(TRAPS["hang"][0]))
        one.start(hang.task.target)
        future = one.submit(hang.task, hang.input)
        server = one.server_pid
        assert server
        wait_for(lambda: len(children(server)) == 1, 10, "child")
        pids = [server, *children(server)]
    assert not any(map(alive, pids))
    with pytest.raises(RuntimeError, match="closed"):
        future.result()


CLIENT = """
import sys
from pathlib import Path
from tests.measure.test_lifetimes import *
cache = Path(sys.argv[1])
put_reference(cache, "hang", np.zeros(N))
one = Measurer(plan_cores(), cache, MeasureConfig(run_timeout=60))
hang = trial("hang", vector_module(TRAPS["hang"][0]))
one.start(hang.task.target)
future = one.submit(hang.task, hang.input)
print(one.server_pid, flush=True)
future.result()
"""


def test_nothing_survives_a_client_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as client:
        assert client.stdout is not None
        server = int(client.stdout.readline())
        wait_for(lambda: len(children(server)) == 1, 10, "child")
        pids = [server, *children(server)]
        client.kill()
    wait_for(lambda: not any(map(alive, pids)), 10, "end of all")
