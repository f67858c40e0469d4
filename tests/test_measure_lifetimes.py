"""The measuring server's processes: who ends when, and what is lost then (nothing)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.processes import alive, children, wait_for
from tests.traps import (
    TARGET,
    TRAPS,
    N,
    gemm_job,
    healthy,
    job,
    outcome_of,
    put_reference,
    vector_module,
)
from tlmd.measure.client import Measurer
from tlmd.measure.cores import plan_cores
from tlmd.measure.protocol import Limits, Work
from tlmd.types import Status

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")


def test_a_killed_server_is_replaced_and_no_job_is_lost(measurer: Measurer) -> None:
    jobs = [gemm_job("gemm") for _ in range(6)]
    results = measurer.measure(jobs)
    done = [next(results)[1]]
    old = measurer.server_pid
    assert old is not None
    orphans = children(old)
    os.kill(old, signal.SIGKILL)
    done += [outcome for _, outcome in results]
    assert len(done) == len(jobs) and all(o.ok for o in done)
    assert measurer.server_pid != old
    wait_for(lambda: not any(map(alive, orphans)), 10, "end of all")


def test_a_job_that_kills_two_servers_fails_and_others_do_not(
    measurer: Measurer, cache: Path
) -> None:
    put_reference(cache, "killer", np.zeros(N))
    kill = 'T.Cast("float32", T.call_extern("int32", "kill", T.call_extern("int32", "getppid"), 9))'
    jobs = [healthy(), job("killer", vector_module(kill)), healthy(), healthy()]
    results = [(one.task.name, outcome) for one, outcome in measurer.measure(jobs)]
    assert len(results) == 4
    for name, outcome in results:
        assert outcome.status is (Status.CRASH if name == "killer" else Status.OK), outcome


def test_building_has_its_own_time_limit(cache: Path) -> None:
    limits = Limits(build_s=0.004, baseline_s=2, run_s=2)
    with Measurer(TARGET, plan_cores(), cache / "slow", limits, builders=1) as one:
        outcome = outcome_of(one, gemm_job("gemm"))
        assert outcome.status is Status.TIMEOUT and "building" in outcome.detail
        pids = [one.server_pid]
    assert not any(alive(pid) for pid in pids if pid)


def test_close_ends_hanging_children(tmp_path: Path) -> None:
    with Measurer(TARGET, plan_cores(), tmp_path, Limits(run_s=60), builders=2) as one:
        put_reference(tmp_path, "hang", np.zeros(N))
        hang = job("hang", vector_module(TRAPS["hang"][0]))
        ticket = one._submit(hang.task, Work(1, "hang", hang.trace, None))
        server = one.server_pid
        assert ticket and server
        wait_for(lambda: len(children(server)) == 1, 10, "child")
        pids = [server, *children(server)]
    assert not any(map(alive, pids))


CLIENT = """
import sys
from pathlib import Path
from tests.test_measure_lifetimes import *
cache = Path(sys.argv[1])
put_reference(cache, "hang", np.zeros(N))
one = Measurer(TARGET, plan_cores(), cache, Limits(run_s=60))
hang = job("hang", vector_module(TRAPS["hang"][0]))
one._submit(hang.task, Work(1, "hang", hang.trace, None))
print(one.server_pid, flush=True)
one._pump()
"""


def test_nothing_survives_a_client_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    ) as client:
        assert client.stdout is not None
        server = int(client.stdout.readline())
        wait_for(lambda: len(children(server)) == 1, 10, "child")
        pids = [server, *children(server)]
        client.kill()
    wait_for(lambda: not any(map(alive, pids)), 10, "end of all")
