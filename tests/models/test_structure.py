"""The structure around a model's tensors: whatever goes in comes out again, also through JSON."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlmd.data.errors import BadInput
from tlmd.models import call_structure, structure
from tlmd.models.structure import Node


class Leaf:
    """Stands for a tensor."""


@dataclass
class Output:
    logits: Any
    hidden: Any = None


Pair = namedtuple("Pair", "left right")

leaves = st.builds(Leaf) | st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3)
        | st.builds(lambda a: OrderedDict(x=a), inner)
        | st.builds(Output, inner, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


def is_leaf(value: Any) -> bool:
    return isinstance(value, Leaf)


@given(values)
def test_a_value_comes_back_through_json(value: Any) -> None:
    tensors: list[Any] = []
    node = structure.describe(value, is_leaf, tensors)
    again = Node.from_json(json.loads(json.dumps(node.to_json())))
    assert again == node
    rebuilt = structure.rebuild(again, tensors)
    assert rebuilt == value and type(rebuilt) is type(value)
    assert [index for _, index in node.tensors()] == list(range(len(tensors)))


@given(st.lists(values, max_size=3), st.dictionaries(st.text("xyz", min_size=1), values))
def test_a_call_is_bound_as_it_was_described(args: list[Any], kwargs: dict[str, Any]) -> None:
    def function(*args: Any, **kwargs: Any) -> None: ...

    call, tensors = call_structure.describe_call(function, args, kwargs, is_leaf)
    call = call_structure.CallStructure.from_json(json.loads(json.dumps(call.to_json())))
    assert call.bind(args, kwargs) == tensors
    assert call.arguments_of(tensors) == (args, kwargs)
    assert len(call.input_names()) == len(tensors)


def test_arguments_may_be_given_by_position_or_by_name() -> None:
    def forward(ids: Any, mask: Any = None, labels: Any = None) -> None: ...

    a, b = Leaf(), Leaf()
    call, _ = call_structure.describe_call(
        forward, (a,), {"mask": {"x": b}, "labels": None}, is_leaf
    )
    assert call.input_names() == ["ids", "mask.x"]
    assert call.bind((), {"mask": {"x": b}, "ids": a}) == call.bind((a, {"x": b}), {}) == [a, b]
    for args, kwargs, words in (
        ((), {"ids": a}, "needs the argument mask"),
        ((a, {"y": b}), {}, "mask has another structure"),
        ((a, {"x": b}, None, 1), {}, "takes 3 arguments"),
        ((a,), {"ids": a, "mask": {"x": b}}, "argument ids twice"),
        ((a,), {"msk": {"x": b}}, "no argument msk; they are ids, mask, labels"),
        ((a, {"x": b}), {"labels": 3}, "was compiled with labels=None"),
    ):
        with pytest.raises(TypeError, match=words):
            call.bind(args, kwargs)


def test_what_is_no_default_must_be_given() -> None:
    def forward(x: Any, double: bool = False, scale: float = 1.0) -> None: ...

    a = Leaf()
    call, _ = call_structure.describe_call(forward, (a,), {"double": True, "scale": 1.0}, is_leaf)
    assert call.bind((a, True), {}) == call.bind((), {"x": a, "double": True}) == [a]
    with pytest.raises(TypeError, match="needs the argument double"):
        call.bind((a,), {})
    for other in (1, 1.0, "True"):  # equal for Python, but not the same to a model
        with pytest.raises(TypeError, match="compiled with double=True"):
            call.bind((a, other), {})


def test_an_unknown_container_is_refused_with_its_place() -> None:
    with pytest.raises(BadInput, match=r"output\.cache of the model is a set"):
        structure.describe({"cache": {1, 2}}, is_leaf, [])


def test_a_class_that_is_gone_becomes_a_namespace() -> None:
    node = Node("object", (Node("tensor", value=0),), ("logits",), type="no.such.module:Output")
    assert structure.rebuild(node, [7]).logits == 7
    harmful = Node("object", (Node("constant", value="x"),), ("path",), type="os:remove")
    assert structure.rebuild(harmful, []).path == "x"
