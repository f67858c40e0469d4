"""Candidates of an older revision of a task, as candidates of the task as it is lowered now."""

from __future__ import annotations

from collections.abc import Iterable

from tlmd.data.types import Candidate
from tlmd.space.importing import is_legal
from tlmd.space.space import TaskSpace


def carried_over(space: TaskSpace, earlier: Iterable[Candidate]) -> list[Candidate]:
    """The candidates of `space` with the decisions of `earlier` ones, which are of another space.

    A candidate fits a sketch in which each of its decisions is legal: the same number of decisions,
    tiles of the same extents, options that exist. The sketch with the same index is tried first,
    since revisions of a program mostly keep their order. A candidate that fits none is left out.
    The others are built, timed and checked like all candidates.
    """
    carried = {}
    for one in earlier:
        places = sorted(range(len(space.sketches)), key=lambda place: place != one.sketch)
        for place in places:
            open_decisions = space.sketches[place].open_decisions
            if len(open_decisions) == len(one.decisions) and all(
                map(is_legal, open_decisions, one.decisions)
            ):
                candidate = Candidate(space.task.id, place, one.decisions)
                carried[candidate.id] = candidate
                break
    return list(carried.values())
