"""Decision features: what they say of tiles, for every sketch; nothing is applied."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import modules
from tlmd.data.computation import DecisionKind
from tlmd.data.types import Candidate, Task
from tlmd.language.uniform import draw_uniform
from tlmd.space.space import TaskSpace
from tlmd.tlm import placement_features
from tlmd.tlm.decision_features import (
    FIRST_DEPTH,
    WIDTH,
    decision_features,
    decision_speedup,
)

SPACE = TaskSpace(modules.gemm())


def _tiled() -> Candidate:
    rng = random.Random(0)
    return draw_uniform(rng, SPACE.task.id, SPACE.sketches[:1], SPACE.locations)


@given(st.integers(0, 1 << 30))
@settings(max_examples=30, deadline=None)
def test_a_row_depends_on_its_candidate_alone(seed: int) -> None:
    rng = random.Random(seed)
    drawn = [draw_uniform(rng, SPACE.task.id, SPACE.sketches, SPACE.locations) for _ in range(6)]
    rows = decision_features(SPACE.computation, SPACE.sketches, drawn)
    assert rows.shape == (6, WIDTH) and not np.isinf(rows).any()
    alone = decision_features(SPACE.computation, SPACE.sketches, drawn[2:3])
    np.testing.assert_array_equal(rows[2], alone[0])
    assert (decision_speedup(rows, 1) == 1).all() and (decision_speedup(rows, 4) <= 4).all()


def test_a_larger_tile_touches_more_in_one_go() -> None:
    start = _tiled()
    extents = [one.extent for one in SPACE.sketches[0].open_decisions[:2]]
    small = ((extents[0], 1, 1, 1), (extents[1], 1, 1, 1), *start.decisions[2:])
    large = ((extents[0] // 4, 1, 1, 4), (extents[1] // 8, 1, 1, 8), *start.decisions[2:])
    candidates = [Candidate(start.task_id, 0, decisions) for decisions in (small, large)]
    few, many = decision_features(SPACE.computation, SPACE.sketches, candidates)
    depths = slice(FIRST_DEPTH, FIRST_DEPTH + 3)  # innermost: iterations, elements, their ratio
    np.testing.assert_allclose(few[depths], [0, np.log2(3), np.log2(3)])
    # 4 x 8 results, 4 values of one operand, 8 of the other
    np.testing.assert_allclose(many[depths], np.log2([32, 44, 44 / 32]), rtol=1e-6)


@pytest.mark.parametrize("make", [modules.gemm, modules.convolution, modules.softmax])
def test_every_kind_of_task_has_features(make: Callable[[], Task]) -> None:
    space = TaskSpace(make())
    rng = random.Random(1)
    drawn = [draw_uniform(rng, space.task.id, space.sketches, space.locations) for _ in range(20)]
    rows = decision_features(space.computation, space.sketches, drawn)
    assert len(np.unique(rows, axis=0)) > 10


def test_it_says_which_loop_of_a_split_sum_becomes_a_dimension() -> None:
    space = TaskSpace(modules.softmax())
    inner, outer = [s for s in space.sketches if len(s.steps) == 2][:2]
    assert {inner.steps, outer.steps} == {("rfactor", "level:0"), ("rfactor", "level:1")}
    rng = random.Random(3)
    drawn = draw_uniform(rng, space.task.id, [inner], space.locations)
    same = Candidate(drawn.task_id, outer.index, drawn.decisions)
    one, other = decision_features(space.computation, space.sketches, [drawn, same])
    assert not np.array_equal(one, other, equal_nan=True)


def test_it_says_how_often_a_block_is_computed() -> None:
    space = TaskSpace(modules.softmax())
    plain = next(s for s in space.sketches if not s.steps)
    located = [i for i, o in enumerate(plain.open_decisions) if o.kind is DecisionKind.LOCATION]
    start = draw_uniform(random.Random(4), space.task.id, [plain], space.locations).decisions
    rows = []
    for at in (-1, 0, 1):
        decisions = tuple((at,) if i == located[0] else d for i, d in enumerate(start))
        candidate = Candidate(space.task.id, plain.index, decisions)
        rows.append(decision_features(space.computation, space.sketches, [candidate])[0])
    extents = [extent for _, extent in space.computation.blocks[-1].iters]
    column = WIDTH - 1 - placement_features.WIDTH + placement_features.FIRST_LOCATION
    rounds = np.exp2([row[column + 1] for row in rows])
    np.testing.assert_allclose(rounds, [1, extents[0], extents[0] * extents[1]], rtol=1e-5)
    assert [row[column] for row in rows] == [-1, 0, 1]


def test_candidates_drawn_from_the_language_are_mostly_legal() -> None:
    rng = random.Random(2)
    drawn = [draw_uniform(rng, SPACE.task.id, SPACE.sketches, SPACE.locations) for _ in range(20)]
    assert sum(SPACE.schedule(candidate) is not None for candidate in drawn) == 20
