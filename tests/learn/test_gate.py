"""Which records are shown, how they are encoded, and when the gate refuses a checkpoint."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import modules
from tests.support.learning import ADD, GEMM, fast_in_one_sketch, numbered, record
from tlmd.data import wire
from tlmd.data.config import RegistryConfig
from tlmd.data.errors import BadInput
from tlmd.data.types import Task
from tlmd.language.sentence import choice_mask, layout
from tlmd.language.vocabulary import IDS
from tlmd.learn import demonstrations
from tlmd.learn.candidate_encoder import Encoder
from tlmd.learn.gate import EvalResult, HeldOut, evaluate, judge, regression
from tlmd.space.space import TaskSpace
from tlmd.tlm import network
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.checkpoint_registry import GateResult
from tlmd.tlm.cost_model import CostModel
from tlmd.tlm.demonstration import Demonstration
from tlmd.tlm.training import Trainer, TrainingPlan


def test_the_policies_choose_what_they_say() -> None:
    records = numbered(4.0, 1.0, 1.2, 1.3, math.inf)
    records[2] = replace(records[2], outcome=replace(records[2].outcome, verified=False))
    assert demonstrations.best(records) == [records[1]]
    records[3] = record(records[3].candidate, 1.1)
    assert demonstrations.top(records) == [records[1], records[3]]
    assert demonstrations.quality(records) == records
    assert demonstrations.shares(records) == pytest.approx([0.25, 1.0, 1 / 1.2, 1 / 1.1, 0.0])
    assert demonstrations.shares(records[4:]) == [0.0]
    assert len(demonstrations.top(numbered(*[1.0 + i / 100 for i in range(20)]))) == 8
    with pytest.raises(BadInput, match="best, top, quality"):
        demonstrations.policy("worst")


def test_a_noisy_record_is_the_best_only_where_nothing_else_is() -> None:
    noisy, quiet = numbered(1.0, 2.0)
    noisy = replace(noisy, outcome=replace(noisy.outcome, noisy=True))
    assert demonstrations.best([noisy, quiet]) == [quiet]
    assert demonstrations.best([noisy]) == [noisy]
    assert {c.outcome.seconds for c in demonstrations.top([noisy, quiet])} == {1.0, 2.0}


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
        assert chosen.outcome.verified
    found = demonstrations.shares(records)
    assert all(0 <= share <= 1 for share in found)
    assert all((share == 0) != r.outcome.ok for share, r in zip(found, records, strict=True))
    assert (1.0 in found) == any(r.outcome.ok for r in records)


@pytest.mark.parametrize("task", [GEMM, modules.softmax(), ADD], ids=lambda t: t.name)
def test_what_was_decided_is_legal_and_only_choices_are_trained(task: Task) -> None:
    space, rng = TaskSpace(task), Random(3)
    encoder = Encoder(space)
    for _ in range(20):
        candidate = space.random(rng)
        sentence = encoder.encode(candidate)
        assert sentence is not None
        assert len(sentence.tokens) == layout(space.sketches[candidate.sketch]).length
        decided = choice_mask(space.sketches[candidate.sketch])
        for place, words in zip(sentence.places, sentence.legal, strict=True):
            assert decided[place] and sentence.tokens[place] in words
            assert len(words) > 1 and IDS["[pad]"] not in words
        assert wire.unpack(Demonstration, wire.pack(sentence)) == sentence


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


@pytest.mark.slow
def test_a_taught_network_passes_and_a_forgetful_one_does_not() -> None:
    known = fast_in_one_sketch(TaskSpace(GEMM), 48, seed=1, slow=0.2)
    shown = replace(known, demonstrations=known.demonstrations[12:])
    examples = [HeldOut(known, 12)]
    model = network.create("nano")
    before = evaluate(model, examples)
    assert before.finite and before.nats > 0 and 0.2 < before.order < 0.8
    Trainer(model, TrainingPlan(steps=25, tasks_per_step=1, per_task=24)).fit([shown])
    result = evaluate(model, examples)
    assert result.order > max(0.7, before.order)
    assert regression(result, before) == "" and "held-out" in regression(before, result)
    taught = Checkpoint(2, "nano", model, CostModel(), {"steps": 25})
    untaught = Checkpoint(1, "nano", network.create("nano"), CostModel(), {"steps": 1})
    assert judge(taught, [untaught], examples) == GateResult("", (2,))
    refused = judge(untaught, [taught], examples)
    assert "held-out" in refused.reason and refused.best == (2,)
    assert judge(untaught, [taught], []) == GateResult("", (2,)), "nothing to compare them by"
    assert evaluate(model, []) == EvalResult(True, 0.0, 0.5)
    with torch.no_grad():
        model.transformer.wte.weight[5, 5] = math.nan
    assert not evaluate(model, examples).finite
    assert "not finite" in regression(evaluate(model, []), before)


def test_the_gate_says_why() -> None:
    old = EvalResult(True, 1.9, 0.75)
    assert regression(EvalResult(True, 1.95, 0.74), old) == ""
    assert regression(EvalResult(True, 2.61, 0.75), old) == "held-out loss 2.61 against 1.90 nats"
    assert "60.0%" in regression(EvalResult(True, 1.0, 0.6), old)
    assert "held-out" in regression(EvalResult(True, math.nan, 0.75), old)
    assert regression(EvalResult(True, 2.61, 0.75), old, RegistryConfig(tolerated_nats=0.9)) == ""
    assert regression(EvalResult(True, 9.0, 0.1), EvalResult(False, math.inf, 0.0)) == ""


def test_a_checkpoint_without_a_training_step_is_refused_even_without_questions() -> None:
    nothing_asked = EvalResult(True, 0.0, 0.5)
    assert regression(nothing_asked, nothing_asked) == ""
    assert "no training step" in regression(nothing_asked, nothing_asked, steps=0)
