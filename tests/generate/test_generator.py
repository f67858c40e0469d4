"""The generator: new programs only, the cost model's choice first, features that travel."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.support import modules
from tlmd.data.config import GenerateConfig
from tlmd.data.types import Outcome, Record, Status, Writer
from tlmd.generate.apply import apply_new
from tlmd.generate.generator import Generator
from tlmd.generate.pick import pick
from tlmd.generate.propose import NOT_THE_TLM, Proposer, WrittenCandidate
from tlmd.generate.search import DecisionSearch, structure
from tlmd.language.uniform import draw_uniform
from tlmd.learn.feature_tables import FeatureTables
from tlmd.space.cache import SpaceCache
from tlmd.space.features import WIDTH as FEATURES
from tlmd.space.space import TaskSpace
from tlmd.tlm import network
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.cost_model import CostModel, Measured
from tlmd.tlm.decision_features import decision_features

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


def test_known_programs_come_first(checkpoint: Checkpoint) -> None:
    space = TaskSpace(TASK)
    known = next(c for seed in range(99) if space.accepts(c := space.random(random.Random(seed))))
    older = replace(space.random(random.Random(1)), task_id="an older revision")
    proposals, _ = Generator(checkpoint, seed=1).write(TASK, 4, [], earlier=(known, older))
    assert [p.writer for p in proposals[:2]] == [Writer.KNOWN, Writer.CARRIED]
    assert proposals[0].candidate == known and len(proposals) == 4
    tried = [(known.id, proposals[0].module_hash)]
    again, _ = Generator(checkpoint, seed=1).write(TASK, 4, [], tried, earlier=(known,))
    assert Writer.KNOWN not in {p.writer for p in again}


def test_shares_of_the_tlm_of_chance_and_of_refinement(checkpoint: Checkpoint) -> None:
    config = GenerateConfig(refined=0.5, uniform=0.25, wide=2, drawn=0.25)
    proposer = Proposer(checkpoint, config, random.Random(2), seed=2)
    space = TaskSpace(TASK)
    wide, unranked = proposer.propose(space, 64, [])
    assert {(one.version, one.writer) for one in wide} == {
        (3, Writer.TLM),
        (NOT_THE_TLM, Writer.RANDOM),
    }
    writers = Counter(one.writer for one in wide)
    assert len(unranked) == 16 and {one.writer for one in unranked} == {Writer.RANDOM}
    assert writers[Writer.RANDOM] == 24 and 66 <= writers[Writer.TLM] <= 72
    proposals, _ = Generator(checkpoint, config, seed=2).write(TASK, 2, [])
    outcome = Outcome(Status.OK, (1.0,), verified=True)
    records = [Record(p.candidate, outcome) for p in proposals]
    writers = Counter(one.writer for one in proposer.propose(space, 64, records).wide)
    assert 20 <= writers[Writer.TLM] <= 24 and 56 <= writers[Writer.REFINEMENT] <= 64


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


def test_the_best_are_picked_first_and_a_share_at_random() -> None:
    rng = random.Random(6)
    scores = np.arange(20, dtype=np.float32)
    different = list(range(20))
    assert pick(scores, different, 6, 0.0, rng) == [19, 18, 17, 16, 15, 14]
    mixed = pick(scores, different, 6, 0.5, rng)
    assert mixed[:3] == [19, 18, 17] and not set(mixed[3:]) & {19, 18, 17} and len(set(mixed)) == 6
    assert len(set(pick(None, different, 6, 0.0, rng))) == 6


def test_of_equal_structures_one_is_picked_before_any_second() -> None:
    rng, scores = random.Random(6), np.asarray([5, 4, 3, 2, 1], np.float32)
    assert pick(scores, ["a", "a", "b", "b", "c"], 4, 0.0, rng) == [0, 2, 4, 1]


def _with_decisions(wanted: int) -> CostModel:
    """A cost model that prefers an innermost factor of `wanted` in the first tile."""
    space, rng = TaskSpace(TASK), random.Random(7)
    candidates = [space.random(rng) for _ in range(300)]
    rows = decision_features(space.computation, space.sketches, candidates)
    seconds = np.array([1.0 if c.decisions[0][-1] == wanted else 4.0 for c in candidates])
    return CostModel().fit(
        [Measured(np.zeros((300, FEATURES), np.float32), seconds, decisions=rows)]
    )


def test_the_search_finds_what_the_decisions_promise(checkpoint: Checkpoint) -> None:
    space, rng = TaskSpace(TASK), random.Random(8)
    drawn = [draw_uniform(rng, TASK.id, space.sketches, space.locations) for _ in range(48)]
    avoided = drawn[0].id
    search = DecisionSearch(space, _with_decisions(4), rng, {avoided})
    ordered = search.explore(drawn[1:], generations=2)
    assert len(ordered) > 47 and avoided not in {c.id for c in ordered}
    scores = [search.scores[c.id] for c in ordered]
    assert scores == sorted(scores, reverse=True)
    assert sum(c.decisions[0][-1] == 4 for c in ordered[:10]) >= 8
    assert all(space.schedule(c) for c in ordered[:5])
    kinds = Counter(structure(space.sketches[c.sketch], c) for c in search.diverse(ordered, 30))
    assert max(kinds.values()) <= 2


def test_the_first_guess_is_the_best_guess(checkpoint: Checkpoint) -> None:
    cost_model = _with_decisions(4)
    config = GenerateConfig(explore=0.0)
    generator = Generator(replace(checkpoint, cost_model=cost_model), config, seed=9)
    (first,), _ = generator.write(TASK, 1, [])
    assert first.candidate.decisions[0][-1] == 4
    several, _ = generator.write(TASK, 4, [])
    assert [p.score for p in several] == sorted((p.score for p in several), reverse=True)


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
