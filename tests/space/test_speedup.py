"""What several cores make of a program, by the iterations of its parallel loops."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import te, topi

from tests.support import modules
from tlmd.data.computation import DecisionKind
from tlmd.space.features import PER_STORE, WIDTH, FeatureExtractor, speedup
from tlmd.space.hardware.target import resolve
from tlmd.space.space import TaskSpace
from tlmd.tlm.cost_model import CostModel, Measured


@given(st.integers(1, 1 << 20), st.integers(1, 256))
def test_the_core_with_the_most_iterations_decides(iterations: int, cores: int) -> None:
    row = np.zeros((1, WIDTH), np.float32)
    row[0, PER_STORE + 39] = np.log2(1 + iterations)
    (found,) = speedup(row, cores)
    assert found == pytest.approx(iterations / -(-iterations // cores), rel=1e-3)
    assert 1 <= found <= min(iterations, cores) * 1.001


def test_a_loop_that_is_not_parallel_has_no_speedup_and_one_that_is_has() -> None:
    a, b = (te.placeholder((128, 128), name=name) for name in "ab")
    target = resolve("native", 2)
    task = replace(modules.task("gemm", [a, b, topi.matmul(a, b)]), target=target)
    space, rng, extractor = TaskSpace(task), Random(0), FeatureExtractor(target)
    seen = set()
    for _ in range(30):
        candidate = space.random(rng)
        open_decisions = space.sketches[candidate.sketch].open_decisions
        (jobs,) = (
            decision[0]
            for one, decision in zip(open_decisions, candidate.decisions, strict=True)
            if one.kind is DecisionKind.PARALLEL
        )
        schedule = space.finish(candidate)
        (found,) = speedup(extractor.rows([schedule]), 2)
        is_parallel = "T.parallel(" in schedule.mod.script()
        assert (found > 1) <= is_parallel and is_parallel <= (jobs > 0)
        seen.add(float(found))
    assert {1.0, 2.0} <= seen


def test_trees_that_were_trained_on_one_core_rank_for_two() -> None:
    rng = np.random.default_rng(0)
    features = rng.random((80, 4), dtype=np.float32)
    on_one = np.exp(2.0 * features[:, 0]).astype(np.float64)
    trained = CostModel().fit([Measured(features, on_one)])
    speedups = np.where(np.arange(80) % 2, 2, 1).astype(np.float32)
    best = int(trained.score(features, speedups).argmax())
    assert speedups[best] == 2
    # What was measured on two cores teaches the same as what was measured on one.
    on_two = CostModel().fit([Measured(features, on_one / speedups, speedups=speedups)])
    np.testing.assert_allclose(on_two.score(features), trained.score(features), rtol=1e-4)
