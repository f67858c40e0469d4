"""The synthetic training tasks: all kinds, reproducible, none twice, none that is excluded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tlmd.corpus import synthetic
from tlmd.corpus.synthetic_operators import JOINED, SELDOM, USUAL
from tlmd.data.types import Task
from tlmd.space.hardware.target import resolve
from tlmd.space.space import TaskSpace


def _portion(excluded: set[str], shares: Sequence[float] = USUAL) -> list[Task]:
    return next(synthetic.synthetic_tasks(resolve("native", 1), excluded, 1, 3, shares))


@pytest.mark.parametrize("shares", [USUAL, SELDOM, JOINED], ids=["usual", "seldom", "joined"])
def test_the_shares_of_the_kinds_are_complete(shares: tuple[float, ...]) -> None:
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0


def test_each_kind_is_in_a_corpus() -> None:
    assert min(map(sum, zip(USUAL, SELDOM, JOINED, strict=True))) > 0


@pytest.mark.slow
def test_joined_tasks_are_attention_and_expansions() -> None:
    tasks = _portion(set(), JOINED)
    assert any(task.attention for task in tasks)
    assert any(task.name.count("conv2d") == 2 for task in tasks)


@pytest.mark.slow
def test_tasks_are_of_all_kinds_reproducible_distinct_and_never_excluded_ones() -> None:
    tasks = _portion(set())
    ids = [task.id for task in tasks]
    assert len(ids) == len(set(ids)) >= 15
    assert all(0 < task.flops <= 4e8 for task in tasks)
    names = " ".join(task.name for task in tasks)
    for kind in ("matmul", "conv2d", "pool2d"):
        assert kind in names
    again = {task.id for task in _portion(set(ids[:5]))}
    assert again == set(ids[5:])
    assert TaskSpace(tasks[0]).sketches
