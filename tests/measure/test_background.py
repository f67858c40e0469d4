"""A daemon in the background leaves the cores to other programs for most of the time."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.processes import wait_for
from tlmd.measure.cores.background import BackgroundWork, OtherPrograms
from tlmd.measure.cores.slot_lock import Calls, exclusively, slot_lock
from tlmd.processes import children

pytestmark = pytest.mark.slow

TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """A machine of two cores whose other programs use as much as the test says."""

    def __init__(self, stat: Path) -> None:
        self.stat = stat
        self.used_s = 0.0
        self.now = time.monotonic()
        self.step(0, 0)
        self.others = OtherPrograms((0, 1), stat)

    def step(self, seconds: float, in_use: float) -> float:
        """Let time pass; the time after it."""
        self.now += seconds
        self.used_s += seconds * in_use
        ticks = round(self.used_s * TICKS)
        self.stat.write_text(f"cpu {ticks} 9\ncpu0 {ticks} 9 9\ncpu1 0 9 9\ncpu2 {7 * ticks} 9\n")
        return self.now


@pytest.fixture(scope="module")
def stat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proc") / "stat"


@pytest.fixture(scope="module", autouse=True)
def low_priority() -> Iterator[None]:
    """This process seems to have the nice value of a daemon that stays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpriority", lambda *_: 15)
        yield


def worked_s(work: BackgroundWork, machine: Machine, seconds: float, in_use: float) -> float:
    """For how long it works while `in_use` cores are in use."""
    steps = round(seconds / 0.1)
    return 0.1 * sum(not work.must_wait(machine.step(0.1, in_use)) for _ in range(steps))


@settings(max_examples=25, deadline=None)
@given(share=st.floats(0.05, 0.9), in_use=st.floats(0.5, 2))
def test_the_work_has_its_share_while_others_use_the_cores(
    stat: Path, share: float, in_use: float
) -> None:
    machine = Machine(stat)
    work = BackgroundWork(machine.others, share)
    found = worked_s(work, machine, 15 / share, in_use)
    assert 0.7 * 15 <= found <= 1.3 * 15 + 1


def test_nothing_waits_on_idle_cores_and_work_goes_on_when_others_end(stat: Path) -> None:
    machine = Machine(stat)
    work = BackgroundWork(machine.others, 0.1)
    assert worked_s(work, machine, 20, 0.05) == pytest.approx(20)
    assert worked_s(work, machine, 20, 1.0) < 5
    assert worked_s(work, machine, 20, 0.0) > 16


def test_work_of_normal_priority_or_with_a_whole_share_never_waits(
    stat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(stat)
    assert worked_s(BackgroundWork(machine.others, 1.0), machine, 5, 2.0) == pytest.approx(5)
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    assert worked_s(BackgroundWork(machine.others, 0.1), machine, 5, 2.0) == pytest.approx(5)


def test_a_program_that_computes_is_seen(tmp_path: Path) -> None:
    others = OtherPrograms(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            wait_for(lambda: others.cores_in_use() > 0.3, 20, "load")
        finally:
            busy.kill()
    assert OtherPrograms((0,), tmp_path / "missing").cores_in_use(time.monotonic() + 1) == 0.0


def test_calls_and_timing_exclude_each_other_and_neither_starves(tmp_path: Path) -> None:
    lock = slot_lock(tmp_path, tuple(os.sched_getaffinity(0)))
    lock.touch()
    calls, timed, end = [0], [False], threading.Event()
    overlaps = []

    def call_without_a_gap() -> None:
        gate = Calls(tmp_path)
        while not end.is_set():
            with gate:
                overlaps.append(timed[0])
                calls[0] += 1
                time.sleep(0.001)

    threads = [threading.Thread(target=call_without_a_gap) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            before = calls[0]
            wait_for(lambda before=before: calls[0] > before, 10, "calls")  # type: ignore[misc]
            with exclusively(lock):
                timed[0] = True
                time.sleep(0.02)
                timed[0] = False
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert calls[0] > 5 and not any(overlaps)


def test_a_call_does_not_wait_for_ever_nor_for_slots_on_other_cores(tmp_path: Path) -> None:
    own = slot_lock(tmp_path, tuple(os.sched_getaffinity(0)))
    other = slot_lock(tmp_path, (4096,))
    gate = Calls(tmp_path)
    with exclusively(own), exclusively(other):
        begin = time.monotonic()
        with gate:
            assert 0.5 < time.monotonic() - begin < 30
    with exclusively(other):
        begin = time.monotonic()
        with gate:
            assert time.monotonic() - begin < 0.5


def test_candidates_are_measured_beside_a_program_that_never_ends(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nos.nice(5)\n"
        "from benchmarks.common.setting import random_programs, tasks\n"
        "from tlmd.data.config import MeasureConfig\n"
        "from tlmd.measure.cores.core_plan import plan_cores\n"
        "from tlmd.measure.measurer import Measurer\n"
        "from tlmd.space.hardware.target import resolve\n"
        "from tlmd.data.types import MeasureInput\n"
        "task = tasks(resolve('native', len(plan_cores().run)))[2]\n"
        "inputs = [MeasureInput(p.candidate.id, p.trace) for p in random_programs(task, 3, 0)]\n"
        "config = MeasureConfig(repeats=1, budget=0.1, background_share=0.6)\n"
        "with Measurer(plan_cores(), Path(sys.argv[1]), config) as measurer:\n"
        "    print([(str(o.status), o.detail) for o in measurer.measure(task, inputs)])\n"
    )
    measure = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            done = subprocess.run(
                measure, capture_output=True, text=True, timeout=200, env=children.environment()
            )
        finally:
            busy.kill()
    assert done.returncode == 0, done.stderr
    outcomes = ast.literal_eval(done.stdout.splitlines()[-1])
    assert outcomes and set(outcomes) == {("ok", "")}
