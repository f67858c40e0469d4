"""Learning: the right records are shown, the loss falls, stopping is prompt, the gate holds."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import modules
from tlmd import wire
from tlmd.config import SHIPPED
from tlmd.errors import BadInput
from tlmd.language.sentence import layout
from tlmd.language.vocabulary import IDS
from tlmd.learn import demonstrations
from tlmd.learn.encoding import Encoder
from tlmd.learn.finetune import QUESTIONS, FinePlan, FineTuner, Report, _questions
from tlmd.learn.gate import Exam, Question, Tolerance, examine, judge
from tlmd.learn.reading import Lesson, Patience, Reader, is_held_out
from tlmd.model import network
from tlmd.model.checkpoint import Checkpoint, from_bytes, load, to_bytes
from tlmd.model.ranker import Measured, Ranker
from tlmd.model.training import Demonstration, Trainer, TrainingPlan, _learning_rate
from tlmd.space.space import TaskSpace
from tlmd.types import Candidate, Outcome, Record, Status, Task

GEMM, ADD = modules.gemm(), modules.elementwise()


def record(candidate: Candidate, seconds: float, **changes: object) -> Record:
    """A verified record, or a failure for infinite seconds."""
    outcome = Outcome(Status.OK, (seconds,), verified=True)
    if not math.isfinite(seconds):
        outcome = Outcome(Status.RUN_ERROR)
    return replace(Record(candidate, outcome, fingerprint="here"), **changes)  # type: ignore[arg-type]


def numbered(*seconds: float) -> list[Record]:
    return [record(Candidate("t", 0, ((i,),)), s) for i, s in enumerate(seconds)]


def measured(task: Task, count: int, seed: int = 0) -> list[Record]:
    """Random candidates; the larger the innermost factors, the faster it pretends to be."""
    space, rng = TaskSpace(task), Random(seed)
    found = {c.id: c for c in (space.random(rng) for _ in range(2 * count))}
    records = []
    for number, candidate in enumerate(list(found.values())[:count]):
        inner = math.prod(d[-1] for d in candidate.decisions if len(d) > 1)
        seconds = math.inf if number % 10 == 9 else 1e-3 / (1 + inner)
        records.append(record(candidate, seconds, created=float(number)))
    return records


def fresh() -> Checkpoint:
    return Checkpoint(0, "nano", network.create("nano"), Ranker())


def never() -> bool:
    return False


def after(calls: int) -> Callable[[], bool]:
    """Says stop from the given call on."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


@pytest.fixture(scope="module")
def gemm_records() -> list[Record]:
    return measured(GEMM, 120)


# which records are shown


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


# encoding and the gate


@pytest.mark.parametrize("task", [GEMM, modules.softmax(), ADD], ids=lambda t: t.name)
def test_a_question_allows_what_was_decided_and_nothing_absurd(task: Task) -> None:
    space, rng = TaskSpace(task), Random(3)
    encoder = Encoder(space)
    for _ in range(20):
        candidate = space.random(rng)
        encoded = encoder.encode(candidate)
        assert encoded is not None
        question = encoded.question("quality:5")
        shown = question.demonstration
        assert shown.sentence[0] == IDS["quality:5"]
        assert len(shown.sentence) == layout(space.sketches[candidate.sketch]).length
        decided = [t for t, d in zip(shown.sentence, shown.decided, strict=True) if d]
        for token, allowed in zip(decided, question.allowed, strict=True):
            assert token in allowed and IDS["[pad]"] not in allowed
        assert wire.unpack(Question, wire.pack(question)) == question


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


def test_the_exam_agrees_with_the_trainer_and_a_taught_network_is_legal() -> None:
    space, rng = TaskSpace(GEMM), Random(1)
    encoder = Encoder(space)
    encoded = [encoder.encode(space.random(rng)) for _ in range(40)]
    questions = [e.question("quality:7") for e in encoded if e]
    shown = [q.demonstration for q in questions]
    model = network.create("nano")
    before = examine(model, questions)
    assert before.finite
    assert before.nats == pytest.approx(Trainer(model, TrainingPlan()).evaluate(shown), rel=1e-4)
    Trainer(model, TrainingPlan(steps=15, prompts_per_step=1, per_prompt=16)).fit(shown)
    exam = examine(model, questions)
    assert exam.nats < 0.7 * before.nats
    assert exam.legal > max(0.8, before.legal)
    assert examine(model, []) == Exam(True, 0.0, 1.0)
    assert judge(exam, before) == "" and "held-out loss" in judge(before, exam)
    with torch.no_grad():
        model.transformer.wte.weight[5, 5] = math.nan
    assert not examine(model, questions).finite
    assert "not finite" in judge(examine(model, []), before)


def test_the_gate_says_why() -> None:
    old = Exam(True, 1.9, 0.95)
    assert judge(Exam(True, 1.95, 0.94), old) == ""
    assert judge(Exam(True, 2.31, 0.95), old) == "held-out loss 2.31 against 1.90 nats"
    assert "80.0%" in judge(Exam(True, 1.0, 0.8), old)
    assert "held-out" in judge(Exam(True, math.nan, 0.95), old)
    assert judge(Exam(True, 2.31, 0.95), old, Tolerance(nats=0.5)) == ""
    assert judge(Exam(True, 9.0, 0.1), Exam(False, math.inf, 0.0)) == ""


# making checkpoints


def test_fine_tuning_lowers_the_held_out_loss_and_leaves_the_base_alone(
    gemm_records: list[Record],
) -> None:
    base = load(SHIPPED)
    before = copy.deepcopy(base.model.state_dict())
    trees = base.ranker.to_bytes()
    tuner = FineTuner(base, FinePlan(steps=12, rounds=3, held_out=0.2))
    records = [*gemm_records, *measured(ADD, 5)]
    tuner.add([GEMM, ADD], records)
    made, report = tuner.train(5, never)
    assert (made.version, report.version, report.steps, report.tasks) == (5, 5, 12, 2)
    assert report.demonstrations + len(report.held_out) == len(records)
    old, new = examine(base.model, report.held_out), examine(made.model, report.held_out)
    assert new.nats < old.nats and judge(new, old) == ""
    for name, weight in base.model.state_dict().items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)
    assert base.ranker.to_bytes() == trees != made.ranker.to_bytes()
    again = from_bytes(to_bytes(made))
    assert again.version == 5 and again.notes["policy"] == "quality"
    assert wire.unpack(Report, wire.pack(report)) == report


def test_training_is_reproducible_and_starts_where_the_plan_says(
    gemm_records: list[Record],
) -> None:
    def weights(start: str, rounds: int) -> torch.Tensor:
        tuner = FineTuner(fresh(), FinePlan(start=start, steps=3, rounds=2))
        tuner.add([GEMM], gemm_records[:40])
        for version in range(1, rounds + 1):
            made, _ = tuner.train(version, never)
        assert made.notes["start"] == (rounds - 1 if start == "latest" else 0)
        return torch.cat([p.detach().flatten() for p in made.model.parameters()])

    first, base, latest = weights("base", 1), weights("base", 2), weights("latest", 2)
    torch.testing.assert_close(first, weights("base", 1), rtol=0, atol=0)
    start = torch.cat([p.detach().flatten() for p in fresh().model.parameters()])
    assert (latest - start).norm() > (base - start).norm()
    tuner = FineTuner(fresh(), FinePlan(start="latest", steps=1, rounds=1))
    tuner.follow(replace(fresh(), version=8))
    assert tuner.train(9, never)[0].notes["start"] == 8


def test_stop_ends_it_at_once_and_keeps_what_was_learnt(gemm_records: list[Record]) -> None:
    tuner = FineTuner(fresh(), FinePlan(steps=10_000, rounds=3))
    tuner.add([GEMM], gemm_records)
    made, report = tuner.train(1, lambda: True)
    assert (report.steps, report.demonstrations, report.held_out) == (0, 0, ())
    assert not made.ranker.trained
    _, report = tuner.train(2, after(20))  # amid the features
    assert (report.steps, report.demonstrations) == (0, 0)
    full, report = tuner.train(3, after(len(gemm_records)))  # 20 were read before
    assert 0 < report.steps < 20 and full.ranker.trained
    deadline = time.monotonic() + 1.5
    _, report = tuner.train(4, lambda: time.monotonic() > deadline)
    assert 0 < report.steps < 10_000 and time.monotonic() - deadline < 1.5
    # Few trees do not replace the many of an earlier version.
    cut, _ = tuner.train(5, after(4))
    assert cut.ranker.to_bytes() == tuner.train(6, lambda: True)[0].ranker.to_bytes()


def test_features_and_sentences_are_made_once(
    gemm_records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = FineTuner(fresh(), FinePlan(steps=1, rounds=1))
    tuner.add([GEMM], gemm_records[:30])
    tuner.train(1, never)

    def refuse(*_: object) -> None:
        raise AssertionError("made twice")

    monkeypatch.setattr(TaskSpace, "finish", refuse)
    monkeypatch.setattr(Encoder, "encode", refuse)
    tuner.add([GEMM], gemm_records[:30])
    assert tuner.train(2, never)[1].demonstrations > 20
    tuner.add([], gemm_records[30:31])
    with pytest.raises(AssertionError, match="made twice"):
        tuner.train(3, never)


def test_odd_records_do_no_harm(gemm_records: list[Record]) -> None:
    first = gemm_records[0]
    assert not is_held_out(first, 0.0) and is_held_out(first, 1.0)
    plan = FinePlan(steps=2, rounds=2, held_out=0.0)
    tuner = FineTuner(fresh(), plan)
    _, report = tuner.train(1, never)  # nothing at all
    assert (report.demonstrations, report.steps, report.loss) == (0, 0, 0.0)
    tuner.add([replace(GEMM, module="")], gemm_records[:5])
    tuner.add([], [record(Candidate("unknown", 0, ()), 1.0)])
    assert tuner.train(2, never)[1].demonstrations == 0  # no such tasks
    failed = replace(first, outcome=Outcome(Status.INVALID), created=99.0)
    tuner.add([GEMM], [failed])
    tuner.add([], [first])  # older than what is known
    tuner.add([], [record(replace(first.candidate, sketch=40), 1.0)])
    for index in range(1, 5):
        tuner.add([], [replace(gemm_records[index], outcome=Outcome(Status.TIMEOUT))])
    made, report = tuner.train(3, never)  # failures only, and a sketch that is gone
    assert (report.demonstrations, report.steps) == (5, 2)
    assert not made.ranker.trained


def test_a_refused_candidate_is_shown_as_a_failure_and_not_ranked() -> None:
    task = modules.softmax()
    good = measured(task, 6)[:6]
    decisions = (*good[0].candidate.decisions[:-1], (40,))  # a loop that is not there
    refused = record(replace(good[0].candidate, decisions=decisions), 1e-9)
    records = [refused, *good]
    reader = Reader(fresh())
    assert reader.read(task, records, Patience(never))
    lesson = reader.lesson(task, records, demonstrations.quality, 0.0)
    assert len(lesson.training) == 7 and len(lesson.table.seconds) == 6
    assert lesson.training[0].sentence[0] == IDS["quality:0"]
    best = reader.lesson(task, records, demonstrations.best, 0.0)
    assert best.training[0].sentence[1:] != lesson.training[0].sentence[1:]


def test_records_without_features_are_read_over_several_lessons(
    gemm_records: list[Record],
) -> None:
    reader = Reader(fresh())
    row = reader._generator.table(GEMM, gemm_records[:1]).features[0]
    ready = replace(gemm_records[9], features=row.astype(np.float16).tobytes())
    records = [*gemm_records[:6], ready]
    for count in (4 + 1, 6 + 1):  # the one that has features is never left out
        assert reader.read(GEMM, records, Patience(never, left=4))
        lesson = reader.lesson(GEMM, records, demonstrations.quality, 0.0)
        assert len(lesson.training) == count


def test_machines_are_graded_apart(gemm_records: list[Record]) -> None:
    tuner = FineTuner(fresh(), FinePlan(policy="best", held_out=0.0, steps=0, rounds=1))
    slow = [replace(r, fingerprint="there") for r in gemm_records[:8]]
    tuner.add([GEMM], gemm_records[:8] + slow)
    _, report = tuner.train(1, never)
    assert (report.demonstrations, report.tasks) == (2, 1)  # the best one of each machine


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.floats(0.01, 0.5))
@settings(max_examples=30, deadline=None)
def test_questions_are_taken_in_turn_from_the_newest(counts: list[int], share: float) -> None:
    table = Measured(np.zeros((0, 1), np.float32), np.zeros(0))
    lessons = [
        Lesson(
            str(task),
            task + share,
            (),
            tuple(Question(Demonstration((task,), (i,), (True,)), ((1,),)) for i in range(count)),
            table,
        )
        for task, count in enumerate(counts)
    ]
    taken = _questions(lessons)
    assert len(taken) == min(sum(counts), QUESTIONS) == len(set(taken))
    asked = {q.demonstration.prompt[0] for q in taken}
    assert asked == {task for task, count in enumerate(counts) if count}
    if taken:
        assert taken[0].demonstration.prompt[0] == max(asked)


def test_the_plan_is_checked() -> None:
    with pytest.raises(BadInput, match="base, latest"):
        FineTuner(fresh(), FinePlan(start="middle"))
    with pytest.raises(BadInput, match="best, top, quality"):
        FineTuner(fresh(), FinePlan(policy="worst"))


def test_the_learning_rate_stays_without_decay() -> None:
    plan = TrainingPlan(steps=100, learning_rate=1.0, decay=False)
    assert [_learning_rate(plan, step) for step in (0, 4, 5, 50, 99)] == [0.2, 1.0, 1.0, 1.0, 1.0]
