"""The generator: new programs only, the ranker's choice first, features that travel."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests import modules
from tlmd.generate.generator import SEARCHED, Generator, Policy
from tlmd.model import network
from tlmd.model.checkpoint import Checkpoint
from tlmd.model.ranker import Ranker
from tlmd.types import Outcome, Record, Status

TASK = modules.gemm()


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint(3, "nano", network.create("nano", seed=1), Ranker())


def test_what_was_tried_is_not_written_again(checkpoint: Checkpoint) -> None:
    generator = Generator(checkpoint, seed=1)
    first, _ = generator.write(TASK, 8, [])
    avoid = [(p.candidate.id, p.module_hash) for p in first]
    second, _ = generator.write(TASK, 8, [], avoid)
    hashes = [p.module_hash for p in (*first, *second)]
    assert len(first) == len(second) == 8 and len(set(hashes)) == 16


def test_shares_of_the_tlm_of_chance_and_of_refinement(checkpoint: Checkpoint) -> None:
    policy = Policy(over=4, refined=0.5, uniform=0.25)
    generator = Generator(checkpoint, policy, seed=2)
    space = generator.space(TASK)
    writers = Counter(v for _, v in generator._written(space, 16, [], 4))
    assert writers == {3: 48, SEARCHED: 16}
    proposals, _ = generator.write(TASK, 2, [])
    outcome = Outcome(Status.OK, (1.0,), verified=True)
    records = [Record(p.candidate, outcome) for p in proposals]
    writers = Counter(v for _, v in generator._written(space, 16, records, 4))
    assert writers[3] == 16 and 40 <= writers[SEARCHED] <= 48


def test_features_travel_with_a_record_and_are_not_computed_again(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = Generator(checkpoint, seed=3)
    proposals, _ = generator.write(TASK, 4, [])
    outcome = Outcome(Status.OK, (1.0,), verified=True)
    records = [Record(p.candidate, outcome, features=p.features) for p in proposals]
    noisy = replace(records[0], outcome=replace(outcome, noisy=True))
    known = Generator(checkpoint)
    monkeypatch.setattr(known, "space", lambda task: pytest.fail("computed again"))
    table = known.table(TASK, [noisy, *records[1:]])
    computed = generator.table(TASK, [replace(r, features=b"") for r in records])
    np.testing.assert_allclose(table.features, computed.features, rtol=2e-3, atol=1e-3)
    assert table.weights is not None and table.weights[0] < 1 == table.weights[1]
