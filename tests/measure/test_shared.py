"""One measurer for several threads: nothing is mixed up, targets follow each other."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from random import Random

import pytest

from benchmarks.common.setting import tasks
from tlmd.data.config import MeasureConfig
from tlmd.data.errors import Failed
from tlmd.data.types import MeasureInput, Outcome, Task
from tlmd.measure.cores.core_plan import CoreLayout, plan_cores
from tlmd.measure.measurer import Measurer
from tlmd.space.hardware.target import resolve
from tlmd.space.space import InvalidCandidate, TaskSpace

pytestmark = pytest.mark.slow

TARGET = resolve("native", 1)


def inputs(task: Task, count: int, seed: int) -> list[MeasureInput]:
    space, rng, found = TaskSpace(task), Random(seed), list[MeasureInput]()
    while len(found) < count:
        try:
            candidate = space.random(rng)
            space.finish(candidate)
        except InvalidCandidate:
            continue
        found.append(MeasureInput(candidate.id, space.trace_json(candidate)))
    return found


def test_threads_share_a_measurer_and_targets_follow_each_other(tmp_path: Path) -> None:
    spec = json.loads(TARGET.spec)
    other = resolve(json.dumps(spec | {"mcpu": "x86-64-v3"}), 1)
    softmax, elsewhere = tasks(TARGET)[2], tasks(other)[2]
    config = MeasureConfig(repeats=1, budget=0.2, builders=2, build_on_run_cores=False)
    results: dict[int, list[Outcome]] = {}
    servers: list[int | None] = []
    with Measurer(plan_cores(), tmp_path / "cache", config) as measurer:

        def measure(number: int, task: Task) -> None:
            results[number] = measurer.measure(task, inputs(task, 2, number))

        threads = [
            threading.Thread(target=measure, args=(number, task))
            for number, task in enumerate([softmax, softmax])
        ]
        measurer.start(TARGET)
        for thread in threads:
            thread.start()
        assert measurer.baseline(softmax).seconds > 0
        for thread in threads:
            thread.join()
        servers.append(measurer.server_pid)
        measure(2, elsewhere)
        servers.append(measurer.server_pid)
    assert all(len(found) == 2 and all(o.ok for o in found) for found in results.values()), results
    assert set(results) == {0, 1, 2}
    assert len(set(servers)) == 2, "a server works for one target"
    with pytest.raises(RuntimeError, match="closed"):
        measurer.measure(softmax, inputs(softmax, 1, 9))


def test_a_server_that_cannot_start_fails_what_was_submitted(tmp_path: Path) -> None:
    nowhere = CoreLayout(run=(100_000,), build=(0,))
    with Measurer(nowhere, tmp_path) as measurer:
        for _ in range(2):  # the second submission tries again
            with pytest.raises(Failed, match="did not start"):
                measurer.start(TARGET)
