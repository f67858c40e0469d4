"""Messages: what is packed comes back; anything else is one clear error."""

from __future__ import annotations

from dataclasses import dataclass

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlmd.data import wire
from tlmd.data.types import (
    Baseline,
    Candidate,
    MeasureInput,
    Outcome,
    Proposal,
    Record,
    Status,
    TargetInfo,
    Task,
)
from tlmd.measure.protocol import MeasureReply, MeasureRequest
from tlmd.pipeline.orders import CompareOrder, MeasureOrder, TrainOrder, WriteOrder, Written

texts = st.text(max_size=12)
numbers = st.integers(-(2**40), 2**40)
times = st.floats(0, 1e9, allow_nan=False)
decisions = st.lists(st.lists(numbers, max_size=3).map(tuple), max_size=3).map(tuple)
candidates = st.builds(Candidate, texts, st.integers(0, 9), decisions)
outcomes = st.builds(
    Outcome,
    st.sampled_from(list(Status)),
    st.lists(times, max_size=3).map(tuple),
    texts,
    max_abs_err=st.none() | times,
)
records = st.builds(Record, candidates, outcomes, numbers, numbers, texts, texts, times, numbers)
proposals = st.builds(Proposal, candidates, texts, texts, numbers, times, numbers)
inputs = st.builds(MeasureInput, texts, texts, st.none() | times)
TARGET = TargetInfo("{}", "cpu", "x86_64", "avx2", 256, 1, 1, 1, 1, "here")
TASK = Task("t", "name", 1, 2.0, "{}", TARGET)


def some(items: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(items, max_size=3).map(tuple)


messages = st.one_of(
    records,
    st.builds(Baseline, texts, times | st.just(float("inf")), texts),
    st.builds(WriteOrder, numbers, st.just(TASK), numbers, times, some(records)),
    st.builds(Written, some(proposals), some(records), numbers),
    st.builds(MeasureOrder, numbers, st.just(TASK), some(inputs)),
    st.builds(CompareOrder, st.just((TASK, TASK)), some(candidates)),
    st.builds(MeasureRequest, numbers, some(texts), some(inputs)),
    st.builds(MeasureReply, numbers, some(outcomes), times),
    st.builds(TrainOrder, numbers, numbers, st.just((TASK,)), some(records), st.booleans()),
)


@given(messages)
@pytest.mark.slow
def test_what_is_packed_comes_back(message: object) -> None:
    assert wire.unpack(type(message), wire.pack(message)) == message


@given(numbers, some(inputs))
def test_a_part_may_be_packed_before(batch: int, some_inputs: tuple[MeasureInput, ...]) -> None:
    order = MeasureOrder(batch, TASK, some_inputs)
    assert wire.pack_with(order, "task", wire.pack(TASK)) == wire.pack(order)


@given(messages, st.data())
def test_a_cut_message_is_an_error(message: object, data: st.DataObject) -> None:
    packed = wire.pack(message)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(wire.WireError):
        wire.unpack(type(message), packed[:cut])


def test_an_older_message_takes_the_defaults_of_newer_fields() -> None:
    record = Record(Candidate("t", 0, ()), Outcome(Status.OK, (1.0,)), lag=3)
    older = msgpack.unpackb(wire.pack(record))[:-3]  # before it knew lag, features and writer
    assert wire.unpack(Record, msgpack.packb(older)).lag == 0
    with pytest.raises(wire.WireError, match="fields"):
        wire.unpack(Record, msgpack.packb(older[:1]))
    with pytest.raises(wire.WireError, match="fields"):
        wire.unpack(Record, msgpack.packb([*older, 3, b"", "tlm", 4]))


@dataclass(frozen=True)
class Single:
    value: int


@pytest.mark.parametrize("wrong", [["x"], [True], [1.5], [None], 7, "x", {}])
def test_types_are_checked(wrong: object) -> None:
    assert wire.unpack(Single, wire.pack(Single(3))) == Single(3)
    with pytest.raises(wire.WireError):
        wire.unpack(Single, msgpack.packb(wrong))


def test_only_dataclasses_cross_a_process() -> None:
    with pytest.raises(TypeError, match="cannot cross"):
        wire.pack(object())
