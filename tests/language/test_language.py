"""The language is closed and exact: whatever can be decided can be said and read back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tlmd.data.computation import Access, Block, Computation, DecisionKind, OpenDecision, Sketch
from tlmd.data.types import Candidate, TargetInfo
from tlmd.language import grammar, numbers, vocabulary
from tlmd.language.prompt import MAX_PROMPT, prompt
from tlmd.language.sentence import choice_mask, decode, encode, layout, quality_word

TARGET = TargetInfo("{}", "cpu", "x86_64", "avx512", 512, 2, 32 << 10, 1 << 20, 32 << 20, "f")


def test_the_vocabulary_is_closed_and_small() -> None:
    assert vocabulary.SIZE <= 1000
    assert not [w for w in vocabulary.WORDS if "unk" in w.lower()]


@given(st.integers(0, 2**31))
def test_every_integer_can_be_said(n: int) -> None:
    words = numbers.free(n)
    assert numbers.parse_free([*words, "block"]) == (n, ["block"])
    vocabulary.ids(words)
    for digits in range(numbers.width(n), 5):
        assert numbers.parse_fixed(numbers.fixed(n, digits)) == n


@given(st.integers(-(2**31), -1))
def test_negative_strides_can_be_said(n: int) -> None:
    assert numbers.parse_free(numbers.free(n)) == (n, [])


@given(st.integers(1, 2**30))
def test_doubling_a_number_changes_only_its_power(n: int) -> None:
    assert numbers.free(n)[:-1] == numbers.free(2 * n)[:-1]


@given(st.integers(1, 2**31))
@settings(max_examples=50)
def test_divisors(n: int) -> None:
    assume(n < 10**6 or n % 2 == 0)
    found = grammar.divisors(n)
    assert found == sorted(set(found)) and all(n % d == 0 for d in found)
    assert {1, n} <= set(found)


@st.composite
def tiles(draw: st.DrawFn) -> tuple[OpenDecision, tuple[int, ...]]:
    """A tile or partition decision and one of its legal decisions."""
    arity = draw(st.integers(2, 5))
    extent = draw(
        st.one_of(st.integers(1, 4096), st.sampled_from([50257, 2**31, 2**31 - 1, 12321]))
    )
    limit = draw(st.sampled_from([0, 1, 16, 64]))
    kind, rule = DecisionKind.TILE, (0, 1)
    if draw(st.booleans()):
        kind, limit = DecisionKind.PARTITION, 0
        rule = (draw(st.integers(1, arity - 1)), draw(st.sampled_from([1, 2, 4])))
    open_decision = OpenDecision(
        kind, 3, extent, arity, limit, (), rule, 0, draw(st.integers(0, 7))
    )
    if not grammar.is_open(open_decision):
        return open_decision, (-1, *[1] * (arity - 1))
    remaining, inner, factors = extent, 1, []
    for place in range(arity - 1):
        row = grammar.legal(open_decision, place, np.array([remaining]), np.array([inner]))[0]
        choices = grammar.values_of(open_decision).values[row].tolist()
        assert choices, "there is always a legal factor"
        factors.append(draw(st.sampled_from(choices)))
        remaining //= factors[-1]
        inner *= factors[-1]
    return open_decision, (remaining, *reversed(factors))


@given(tiles(), st.data())
@settings(max_examples=200, deadline=None)
def test_one_value_is_legal_where_the_table_says_so(
    drawn: tuple[OpenDecision, tuple[int, ...]], data: st.DataObject
) -> None:
    open_decision, decision = drawn
    assume(grammar.is_open(open_decision))
    remaining, inner = open_decision.extent, 1
    for place, factor in enumerate(reversed(decision[1:])):
        row = grammar.legal(open_decision, place, np.array([remaining]), np.array([inner]))[0]
        values = grammar.values_of(open_decision).numbers
        alone = [grammar.is_legal(open_decision, place, remaining, inner, n) for n in values]
        assert alone == row.tolist()
        remaining //= factor
        inner *= factor


@st.composite
def candidates(draw: st.DrawFn) -> tuple[Sketch, Candidate]:
    open_decisions, decisions = [], []
    for open_decision, decision in draw(st.lists(tiles(), min_size=0, max_size=5)):
        open_decisions.append(open_decision)
        decisions.append(decision)
    for _ in range(draw(st.integers(0, 2))):
        options = tuple(draw(st.lists(st.integers(0, 4096), min_size=1, max_size=6)))
        open_decisions.append(OpenDecision(DecisionKind.CATEGORY, 9, options=options))
        decisions.append((draw(st.integers(0, len(set(options)) - 1)),))
    extents = (0, *(draw(st.integers(1, 128)) * jobs for jobs in (1, 2, 4, 8, 16)))
    open_decisions.append(OpenDecision(DecisionKind.PARALLEL, 10, options=extents))
    decisions.append((draw(st.sampled_from(extents)),))
    for _ in range(draw(st.integers(0, 3))):
        open_decisions.append(
            OpenDecision(DecisionKind.LOCATION, 11, block=draw(st.integers(-1, 60)))
        )
        decisions.append((draw(st.integers(-2, 63)),))
    index = draw(st.integers(0, 31))
    return Sketch(index, tuple(open_decisions)), Candidate("t", index, tuple(decisions))


@given(candidates())
@settings(max_examples=300, deadline=None)
@pytest.mark.slow
def test_sentences_round_trip_exactly(drawn: tuple[Sketch, Candidate]) -> None:
    sketch, candidate = drawn
    sketches = tuple(
        sketch if i == sketch.index else Sketch(i, ()) for i in range(sketch.index + 1)
    )
    tokens = encode(sketch, candidate)
    assert decode(sketches, tokens, "t") == candidate
    assert len(tokens) == layout(sketch).length == len(choice_mask(sketch))
    assert max(tokens) < vocabulary.SIZE


@given(tiles(), st.data())
@settings(max_examples=200, deadline=None)
def test_what_the_space_cannot_produce_is_refused(
    drawn: tuple[OpenDecision, tuple[int, ...]], data: st.DataObject
) -> None:
    open_decision, decision = drawn
    assume(open_decision.extent > 1 and grammar.is_open(open_decision))
    at = data.draw(st.integers(0, open_decision.arity - 1))
    broken = list(decision)
    broken[at] += data.draw(st.integers(1, 3))
    with pytest.raises(ValueError):
        grammar.to_values(open_decision, tuple(broken))
    with pytest.raises(ValueError):
        grammar.to_values(open_decision, (0, *decision[1:]))


def test_a_damaged_sentence_is_an_error_not_a_candidate() -> None:
    open_decision = OpenDecision(DecisionKind.TILE, 3, 96, 3, 64, block=0)
    sketch = Sketch(0, (open_decision,))
    tokens = encode(sketch, Candidate("t", 0, ((3, 8, 4),)))
    for damaged in (tokens[:-1], [*tokens, 0], [*tokens[:3], tokens[4], *tokens[4:]]):
        with pytest.raises(ValueError):
            decode((sketch,), damaged, "t")


def test_quality_tells_how_close_to_the_best() -> None:
    assert quality_word(1.0, 1.0) == "quality:7"
    assert quality_word(1.0, 30.0) == "quality:1"
    assert quality_word(1.0, float("inf")) == "quality:0"
    words = [quality_word(1.0, 1.0 + 0.01 * i) for i in range(3000)]
    assert words == sorted(words, reverse=True)


def test_the_prompt_has_no_names_and_stays_short() -> None:
    access = Access(-1, "float32", (((0, 1),), ((1, 2), (2, -1))))
    reduction = Block((("S", 12), ("R", 7)), (access,), (access,), ("mul", "add"))
    plain = Block((("S", 12),), (access,) * 8, (access,), ("never_heard_of",))
    sketches = (Sketch(0, (), ("tiling", "S", "R", "block:0")),)
    long = prompt(Computation((reduction, *[plain] * 200)), TARGET, sketches)
    assert len(long) <= MAX_PROMPT + 1
    words = [vocabulary.WORDS[t] for t in long]
    assert "R" in words and "more" in words and words[-1] == "[decide]"
    other = prompt(Computation((plain,)), TARGET, sketches)
    assert other != prompt(Computation((reduction,)), TARGET, sketches)
