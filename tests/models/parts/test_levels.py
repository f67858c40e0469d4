"""Parts of any graph: each operator is in one, and no part needs a later one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tlmd.models.parts.levels import groups

Graph = tuple[list[set[int]], set[int], set[int]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Needs of each operator, those that TVM compiles, and those that are worth it."""
    size = draw(st.integers(1, 25))
    needs = [
        set(draw(st.lists(st.integers(0, n - 1), max_size=3))) if n else set() for n in range(size)
    ]
    members = st.sets(st.integers(0, size - 1))
    return needs, draw(members), draw(members)


@given(graphs())
def test_parts_run_one_after_the_other(graph: Graph) -> None:
    needs, supported, heavy = graph

    def is_worth_it(nodes: Sequence[int]) -> bool:
        return not heavy.isdisjoint(nodes)

    found = groups(needs, supported, is_worth_it)
    place = {node: number for number, group in enumerate(found) for node in group.nodes}
    assert sorted(place) == list(range(len(needs)))
    assert sum(len(group.nodes) for group in found) == len(needs)
    for node, sources in enumerate(needs):
        assert all(place[source] <= place[node] for source in sources)
    for group in found:
        assert list(group.nodes) == sorted(group.nodes)
        if group.tuned:
            assert supported.issuperset(group.nodes) and is_worth_it(group.nodes)


def test_two_parts_of_tvm_around_an_operator_that_it_lacks() -> None:
    found = groups([set(), {0}, {1}, {0, 2}], {0, 1, 3}, lambda _: True)
    assert [(group.nodes, group.tuned) for group in found] == [
        ((0, 1), True),
        ((2,), False),
        ((3,), True),
    ]
    (alone,) = groups([set(), {0}, {1}, {0, 2}], {0, 1, 3}, lambda nodes: len(nodes) > 2)
    assert not alone.tuned
