"""Which records are shown, how they are encoded, and when the gate refuses a checkpoint."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import modules
from tests.learning import ADD, GEMM, numbered, record
from tlmd import wire
from tlmd.config import RegistryConfig
from tlmd.errors import BadInput
from tlmd.language.sentence import layout
from tlmd.language.vocabulary import IDS
from tlmd.learn import demonstrations
from tlmd.learn.encoding import Encoder
from tlmd.learn.gate import EvalResult, HeldOutExample, evaluate, regression
from tlmd.model import network
from tlmd.model.training import Trainer, TrainingPlan
from tlmd.space.space import TaskSpace
from tlmd.types import Task


def test_the_policies_choose_what_they_say() -> None:
    records = numbered(4.0, 1.0, 1.2, 1.3, math.inf)
    records[2] = replace(records[2], outcome=replace(records[2].outcome, verified=False))
    assert [c.record for c in demonstrations.best(records)] == [records[1]]
    records[3] = record(records[3].candidate, 1.1)
    assert [c.record for c in demonstrations.top(records)] == [records[1], records[3]]
    assert {c.quality for c in demonstrations.top(records)} == {"quality:7"}
    words = [c.quality for c in demonstrations.quality(records)]
    assert words == ["quality:3", "quality:7", "quality:6", "quality:6", "quality:0"]
    assert len(demonstrations.top(numbered(*[1.0 + i / 100 for i in range(20)]))) == 8
    with pytest.raises(BadInput, match="best, top, quality"):
        demonstrations.policy("worst")


def test_a_noisy_record_is_the_best_only_where_nothing_else_is() -> None:
    noisy, quiet = numbered(1.0, 2.0)
    noisy = replace(noisy, outcome=replace(noisy.outcome, noisy=True))
    assert demonstrations.best([noisy, quiet])[0].record == quiet
    assert demonstrations.best([noisy])[0].record == noisy
    assert [c.quality for c in demonstrations.quality([noisy, quiet])] == ["quality:7"] * 2
    assert {c.record.outcome.seconds for c in demonstrations.top([noisy, quiet])} == {1.0, 2.0}


OUTCOMES = st.lists(
    st.tuples(st.floats(1e-6, 10.0) | st.just(math.inf), st.booleans(), st.booleans()), max_size=30
)


@given(OUTCOMES)
def test_policies_show_nothing_wrong_as_good(drawn: list[tuple[float, bool, bool]]) -> None:
    records = [
        replace(r, outcome=replace(r.outcome, verified=verified and r.outcome.ok, noisy=noisy))
        for r, (_, verified, noisy) in zip(
            numbered(*[seconds for seconds, _, _ in drawn]), drawn, strict=True
        )
    ]
    good = [r for r in records if r.outcome.verified]
    assert len(demonstrations.best(records)) == min(len(good), 1)
    assert len(demonstrations.top(records)) <= demonstrations.TOP
    assert bool(demonstrations.top(records)) == bool(good)
    for chosen in (*demonstrations.best(records), *demonstrations.top(records)):
        assert chosen.record.outcome.verified
    graded = demonstrations.quality(records)
    assert [c.record for c in graded] == records
    assert all((c.quality == "quality:0") != c.record.outcome.ok for c in graded)
    if any(r.outcome.ok for r in records):
        assert "quality:7" in {c.quality for c in graded}


@pytest.mark.parametrize("task", [GEMM, modules.softmax(), ADD], ids=lambda t: t.name)
def test_a_held_out_example_allows_what_was_decided_and_nothing_absurd(task: Task) -> None:
    space, rng = TaskSpace(task), Random(3)
    encoder = Encoder(space)
    for _ in range(20):
        candidate = space.random(rng)
        encoded = encoder.encode(candidate)
        assert encoded is not None
        held_out_example = encoded.held_out_example("quality:5")
        shown = held_out_example.demonstration
        assert shown.sentence[0] == IDS["quality:5"]
        assert len(shown.sentence) == layout(space.sketches[candidate.sketch]).length
        decided = [t for t, d in zip(shown.sentence, shown.decided, strict=True) if d]
        for token, allowed in zip(decided, held_out_example.allowed, strict=True):
            assert token in allowed and IDS["[pad]"] not in allowed
        assert wire.unpack(HeldOutExample, wire.pack(held_out_example)) == held_out_example


def test_what_cannot_be_said_is_not_encoded() -> None:
    space = TaskSpace(GEMM)
    encoder, good = Encoder(space), space.random(Random(0))
    for bad in (
        replace(good, sketch=99),
        replace(good, sketch=-1),
        replace(good, decisions=good.decisions[:-1]),
        replace(good, decisions=((7, 7, 7, 7), *good.decisions[1:])),
        replace(good, decisions=((), *good.decisions[1:])),
    ):
        assert encoder.encode(bad) is None


def test_the_evaluation_agrees_with_the_trainer_and_a_taught_network_is_legal() -> None:
    space, rng = TaskSpace(GEMM), Random(1)
    encoder = Encoder(space)
    encoded = [encoder.encode(space.random(rng)) for _ in range(40)]
    examples = [e.held_out_example("quality:7") for e in encoded if e]
    shown = [q.demonstration for q in examples]
    model = network.create("nano")
    before = evaluate(model, examples)
    assert before.finite
    assert before.nats == pytest.approx(Trainer(model, TrainingPlan()).evaluate(shown), rel=1e-4)
    Trainer(model, TrainingPlan(steps=15, prompts_per_step=1, per_prompt=16)).fit(shown)
    result = evaluate(model, examples)
    assert result.nats < 0.7 * before.nats
    assert result.legal > max(0.8, before.legal)
    assert evaluate(model, []) == EvalResult(True, 0.0, 1.0)
    assert regression(result, before) == "" and "held-out loss" in regression(before, result)
    with torch.no_grad():
        model.transformer.wte.weight[5, 5] = math.nan
    assert not evaluate(model, examples).finite
    assert "not finite" in regression(evaluate(model, []), before)


def test_the_gate_says_why() -> None:
    old = EvalResult(True, 1.9, 0.95)
    assert regression(EvalResult(True, 1.95, 0.94), old) == ""
    assert regression(EvalResult(True, 2.31, 0.95), old) == "held-out loss 2.31 against 1.90 nats"
    assert "80.0%" in regression(EvalResult(True, 1.0, 0.8), old)
    assert "held-out" in regression(EvalResult(True, math.nan, 0.95), old)
    assert regression(EvalResult(True, 2.31, 0.95), old, RegistryConfig(tolerated_nats=0.5)) == ""
    assert regression(EvalResult(True, 9.0, 0.1), EvalResult(False, math.inf, 0.0)) == ""
