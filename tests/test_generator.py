"""The generator: new programs only, the cost model's choice first, features that travel."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests import modules
from tlmd.config import GenerateConfig
from tlmd.generate.apply import apply_new
from tlmd.generate.generator import Generator
from tlmd.generate.pick import pick
from tlmd.generate.propose import NOT_THE_TLM, Proposer, WrittenCandidate
from tlmd.learn.feature_tables import FeatureTables
from tlmd.model import network
from tlmd.model.checkpoint import Checkpoint
from tlmd.model.cost_model import CostModel, Floats
from tlmd.space.cache import SpaceCache
from tlmd.space.space import TaskSpace
from tlmd.types import Outcome, Record, Status, Writer

TASK = modules.gemm()


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint(3, "nano", network.create("nano", seed=1), CostModel())


def test_what_was_tried_is_not_written_again(checkpoint: Checkpoint) -> None:
    generator = Generator(checkpoint, seed=1)
    first, _ = generator.write(TASK, 8, [])
    avoid = [(p.candidate.id, p.module_hash) for p in first]
    second, _ = generator.write(TASK, 8, [], avoid)
    hashes = [p.module_hash for p in (*first, *second)]
    assert len(first) == len(second) == 8 and len(set(hashes)) == 16
    assert {p.picked_by for p in first} == {3}


def test_shares_of_the_tlm_of_chance_and_of_refinement(checkpoint: Checkpoint) -> None:
    config = GenerateConfig(refined=0.5, uniform=0.25)
    proposer = Proposer(checkpoint, config, random.Random(2), seed=2)
    space = TaskSpace(TASK)
    written = proposer.propose(space, 64, [])
    assert Counter(one.version for one in written) == {3: 48, NOT_THE_TLM: 16}
    assert Counter(one.writer for one in written) == {Writer.TLM: 48, Writer.RANDOM: 16}
    proposals, _ = Generator(checkpoint, config, seed=2).write(TASK, 2, [])
    outcome = Outcome(Status.OK, (1.0,), verified=True)
    records = [Record(p.candidate, outcome) for p in proposals]
    writers = Counter(one.version for one in proposer.propose(space, 64, records))
    assert writers[3] == 16 and 40 <= writers[NOT_THE_TLM] <= 48


def test_equal_programs_are_applied_once_and_refusals_become_records() -> None:
    space, rng = TaskSpace(TASK), random.Random(5)
    good = space.random(rng)
    refused = replace(good, decisions=((7, 7, 7, 7), *good.decisions[1:]))
    ids: set[str] = set()
    hashes: set[str] = set()
    twice = WrittenCandidate(good, Writer.TLM, 3)
    wrong = WrittenCandidate(refused, Writer.REFINEMENT, NOT_THE_TLM)
    applied, records = apply_new(space, [twice, twice, wrong], ids, hashes)
    assert [a.written for a in applied] == [twice]
    assert [(r.candidate, r.version, r.writer, r.outcome.status) for r in records] == [
        (refused, NOT_THE_TLM, Writer.REFINEMENT, Status.INVALID)
    ]
    assert ids == {good.id, refused.id} and hashes == {applied[0].module_hash}
    assert apply_new(space, [twice], set(), hashes) == ([], [])


class _Scores(CostModel):
    """A cost model whose score is the first feature."""

    trained = True  # type: ignore[assignment]

    def score(self, features: Floats, speedups: Floats | None = None) -> Floats:
        return features[:, 0] if speedups is None else features[:, 0] * speedups


def test_the_best_are_picked_first_and_a_share_at_random() -> None:
    rng = random.Random(6)
    features = np.arange(20, dtype=np.float32)[:, None]
    top = [(19 - i, 19.0 - i) for i in range(6)]
    ones = np.ones(20, np.float32)
    assert pick(features, ones, 6, _Scores(), 0.0, rng) == top
    mixed = pick(features, ones, 6, _Scores(), 0.5, rng)
    assert mixed[:3] == top[:3] and not set(mixed[3:]) & set(top[:3]) and len(set(mixed)) == 6
    faster_on_two_cores = np.where(np.arange(20) == 11, 2, 1).astype(np.float32)
    assert pick(features, faster_on_two_cores, 1, _Scores(), 0.0, rng) == [(11, 22.0)]


def test_features_travel_with_a_record_and_are_not_computed_again(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposals, _ = Generator(checkpoint, seed=3).write(TASK, 4, [])
    outcome = Outcome(Status.OK, (1.0,), verified=True)
    records = [Record(p.candidate, outcome, features=p.features) for p in proposals]
    noisy = replace(records[0], outcome=replace(outcome, noisy=True))
    computed = FeatureTables(SpaceCache()).table(TASK, [replace(r, features=b"") for r in records])
    monkeypatch.setattr(TaskSpace, "finish", lambda *_: pytest.fail("computed again"))
    table = FeatureTables(SpaceCache()).table(TASK, [noisy, *records[1:]])
    np.testing.assert_allclose(table.features, computed.features, rtol=2e-3, atol=1e-3)
    assert table.weights is not None and table.weights[0] < 1 == table.weights[1]
