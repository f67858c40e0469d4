"""The synthetic training tasks: all kinds, reproducible, none twice, none that is excluded."""

from __future__ import annotations

import itertools

import pytest

from tlmd.space.space import TaskSpace
from tlmd.space.target import resolve
from tlmd.types import Task
from tlmd.workloads import synthetic


def _first(excluded: set[str], count: int = 30) -> list[Task]:
    portions = synthetic.synthetic_tasks(resolve("native", 1), excluded, count, seed=3)
    return list(itertools.chain.from_iterable(portions))


@pytest.mark.slow
def test_tasks_are_reproducible_distinct_and_never_excluded_ones() -> None:
    tasks = _first(set())
    ids = [task.id for task in tasks]
    assert len(ids) == len(set(ids)) >= 30
    assert all(0 < task.flops <= 4e8 for task in tasks)
    assert {task.id for task in _first(set())} == set(ids)
    assert not set(ids[:10]) & {task.id for task in _first(set(ids[:10]))}
    assert TaskSpace(tasks[0]).sketches


@pytest.mark.slow
def test_every_kind_is_drawn() -> None:
    names = " ".join(task.name for task in _first(set(), 80))
    for kind in ("matmul", "conv2d", "conv2d_transpose", "pool2d", "softmax", "layer_norm"):
        assert kind in names
