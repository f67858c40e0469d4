"""A candidate waits for a quiet machine, if the user wants it, and no longer than allowed."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import modules
from tlmd.data.config import MeasureConfig
from tlmd.measure.protocol import MessageReader, Setup
from tlmd.measure.server import child_context
from tlmd.measure.server.child_context import ChildContext, ServerContext, Stopwatch
from tlmd.measure.server.program import parse
from tlmd.measure.timing.noise import Reading


class Monitor:
    """Says that the machine is slow so often, then that it is quiet."""

    gflops = 100.0

    def __init__(self, slow: float) -> None:
        self.left, self.read_count = slow, 0

    def read(self) -> Reading:
        self.read_count += 1
        self.left -= 1
        return Reading(1.5 if self.left >= 0 else 1.02)


def context(monitor: Any, wait_quiet: float, tmp_path: Path) -> ServerContext:
    config = MeasureConfig(wait_quiet=wait_quiet)
    setup = Setup(modules.native(), (0, 1), (0,), str(tmp_path), config.model_dump_json())
    store: Any = None
    return ServerContext(setup, config, None, store, monitor, tmp_path / "lock")


@pytest.mark.parametrize(("wait_quiet", "slow", "reads"), [(0.0, 9, 0), (60.0, 3, 4), (60.0, 0, 1)])
def test_it_waits_until_the_machine_is_quiet(
    wait_quiet: float, slow: float, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monitor = Monitor(slow)
    context(monitor, wait_quiet, tmp_path).wait_quiet()
    assert monitor.read_count == reads


def test_it_waits_no_longer_than_allowed(tmp_path: Path) -> None:
    begin = time.monotonic()
    context(Monitor(math.inf), 0.2, tmp_path).wait_quiet()
    assert 0.2 <= time.monotonic() - begin < 5


def test_a_child_says_that_it_has_the_slot_as_long_as_it_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child must send all its stages before it gives the slot back.

    The child that has the slot next stops all others. If it stops one that has not yet sent
    "checking", the server takes the stopped child for one that is timed, and kills it when its time
    is over.
    """
    messages, report = os.pipe()
    reader, said = MessageReader(), dict[str, list[str]]()

    def read(moment: str) -> None:
        reader.read(messages)
        said[moment] = []
        while (message := reader.next()) is not None:
            said[moment].append(message.name)

    @contextlib.contextmanager
    def slot(_: ServerContext) -> Iterator[None]:
        read("before")
        yield
        read("with")

    monkeypatch.setattr(child_context, "_slot", slot)
    child = ChildContext(context(Monitor(0), 0.0, tmp_path), (), report, Stopwatch(0.0))
    with child.timing():
        pass
    os.close(report)
    assert not reader.read(messages), "nothing is said after it"
    os.close(messages)
    assert said == {"before": ["waiting"], "with": ["settling", "running", "checking"]}


def test_the_least_time_of_a_task_is_that_of_its_multiply_adds(tmp_path: Path) -> None:
    task = modules.gemm(64, 96, 128)
    server = context(Monitor(0), 0.0, tmp_path)
    child = ChildContext(server, (), -1, Stopwatch(0.0))
    assert child.least_s(parse(task)) == pytest.approx(2 * 64 * 96 * 128 / (2 * 100e9))  # two cores
