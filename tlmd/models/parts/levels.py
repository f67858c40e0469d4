"""Which operators of a graph form a part: parts of TVM and of the framework take turns.

Each operator has a level: even if TVM compiles it, odd if the framework runs it. No operator needs
one of a higher level, so the levels run one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """The operators of one part, in the order of the graph."""

    nodes: tuple[int, ...]
    """Their places in the graph."""

    tuned: bool
    """Whether TVM compiles them."""


def groups(
    needs: Sequence[Collection[int]],
    supported: Collection[int],
    is_worth_it: Callable[[Sequence[int]], bool],
) -> list[Group]:
    """The parts of a graph, in an order in which they can run.

    `needs[i]` are the operators before `i` whose results it takes. `supported` are those that TVM
    may compile; a part of them that is not `is_worth_it` stays in the framework.
    """
    left = set(supported)
    while True:
        by_level: dict[int, list[int]] = {}
        for node, level in enumerate(levels(needs, left)):
            by_level.setdefault(level, []).append(node)
        small = [n for level, n in by_level.items() if level % 2 == 0 and not is_worth_it(n)]
        if not small:
            return [Group(tuple(by_level[k]), k % 2 == 0) for k in sorted(by_level)]
        # The smallest first: what it leaves behind may join other parts.
        _, nodes = min((len(nodes), nodes) for nodes in small)
        left.difference_update(nodes)


def levels(needs: Sequence[Collection[int]], supported: Collection[int]) -> list[int]:
    """The level of each operator; arguments as for `groups`."""
    found: list[int] = []
    for node, sources in enumerate(needs):
        lowest = max((found[source] for source in sources), default=0)
        found.append(lowest + (lowest % 2 != int(node not in supported)))
    return found
