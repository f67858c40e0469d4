"""One measurer for several threads: nobody waits for another's jobs, nothing is mixed up."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from random import Random

import pytest

from benchmarks.setting import tasks
from tlmd.measure.client import Job, Measurer
from tlmd.measure.cores import plan_cores
from tlmd.measure.protocol import Limits
from tlmd.measure.shared import SharedMeasurer
from tlmd.space.space import InvalidCandidate, TaskSpace
from tlmd.space.target import resolve
from tlmd.types import Outcome, TargetInfo, Task

CORES = plan_cores()
TARGET = resolve("native", 1)


def jobs(task: Task, count: int, seed: int) -> list[Job]:
    space, rng, found = TaskSpace(task), Random(seed), []
    while len(found) < count:
        try:
            candidate = space.random(rng)
            space.finish(candidate)
        except InvalidCandidate:
            continue
        found.append(Job(task, candidate, space.trace_json(candidate)))
    return found


def test_threads_share_a_measurer_and_targets_take_turns(tmp_path: Path) -> None:
    made: list[TargetInfo] = []

    def make(target: TargetInfo) -> Measurer:
        made.append(target)
        return Measurer(target, CORES, tmp_path / "cache", Limits(repeats=1, budget_s=0.2), 2)

    spec = json.loads(TARGET.spec)
    other = resolve(json.dumps(spec | {"mcpu": "x86-64-v3"}), 1)
    shared = SharedMeasurer(make)
    softmax = tasks(TARGET)[2]
    results: dict[int, list[Outcome]] = {}

    def measure(number: int, task: Task) -> None:
        results[number] = shared.measure(jobs(task, 2, number))

    threads = [
        threading.Thread(target=measure, args=(i, task))
        for i, task in enumerate([softmax, softmax, tasks(other)[2]])
    ]
    try:
        shared.start(TARGET)
        for thread in threads:
            thread.start()
        assert shared.baseline(softmax).seconds > 0
        for thread in threads:
            thread.join()
    finally:
        shared.close()
    assert all(len(found) == 2 and all(o.ok for o in found) for found in results.values()), results
    assert set(results) == {0, 1, 2} and {t.spec for t in made} == {TARGET.spec, other.spec}
    with pytest.raises(RuntimeError, match="closed"):
        shared.measure(jobs(softmax, 1, 9))
