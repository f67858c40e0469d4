"""The legal values of each open decision. They mask the sampling, so that it stays in the space.

The decision for an open decision is written as one or more *values*, each a row of token ids of
fixed width. The grammar lists all values of an open decision and, given the values before, which of
them are legal. Only values that carry information are written: for a tile, the factors from the
innermost outwards, without the outermost one, because the others determine it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tlmd.data.computation import DecisionKind, OpenDecision
from tlmd.data.types import Decision
from tlmd.language.numbers import fixed, width
from tlmd.language.vocabulary import IDS, MAX_LOCATIONS, ids

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
INLINE, ROOT = -2, -1
_FACTORED = (DecisionKind.TILE, DecisionKind.PARTITION)


@dataclass(frozen=True)
class Values:
    """All values that can be written for an open decision, with their token ids."""

    values: Ints
    """The values, ``[n]``."""

    codes: Ints
    """Their token ids, ``[n, width]``."""

    @functools.cached_property
    def numbers(self) -> list[int]:
        """The values as a list."""
        return [int(value) for value in self.values]

    @functools.cached_property
    def _rows(self) -> dict[int, int]:
        return {value: row for row, value in reversed([*enumerate(self.numbers)])}

    def index(self, value: int) -> int:
        """The row of `value`. Raises `ValueError` for any other value."""
        row = self._rows.get(value)
        if row is None:
            raise ValueError(f"{value} is not one of {self.numbers}")
        return row


@functools.lru_cache(maxsize=4096)
def values_of(open_decision: OpenDecision) -> Values:
    """The values that can be written for `open_decision`. All of its values have the same list."""
    if open_decision.kind is DecisionKind.LOCATION:
        words = ["at:inline", "at:root", *(f"at:{i}" for i in range(MAX_LOCATIONS))]
        codes = np.array([[IDS[w]] for w in words], np.int64)
        return Values(np.arange(INLINE, MAX_LOCATIONS, dtype=np.int64), codes)
    numbers = _numbers(open_decision)
    digits = max(map(width, numbers))
    codes = np.array([ids(fixed(n, digits)) for n in numbers], np.int64)
    return Values(np.array(numbers, np.int64), codes)


def _numbers(open_decision: OpenDecision) -> list[int]:
    if open_decision.kind in _FACTORED:
        return divisors(open_decision.extent)
    if open_decision.kind is DecisionKind.CATEGORY and len(set(open_decision.options)) < len(
        open_decision.options
    ):
        return list(range(len(open_decision.options)))  # equal options: write the index
    if min(open_decision.options) < 0:
        return list(range(len(open_decision.options)))
    return list(open_decision.options)


def places(open_decision: OpenDecision) -> int:
    """How many values are written for `open_decision`; 0 if there is nothing to choose."""
    if open_decision.kind in _FACTORED:
        return open_decision.arity - 1 if is_open(open_decision) else 0
    return 1


def is_open(open_decision: OpenDecision) -> bool:
    """Whether a tile can be chosen: its extent is known and its partition rule can be met."""
    return open_decision.extent > 0 and open_decision.extent % open_decision.partition[1] == 0


def legal(open_decision: OpenDecision, index: int, remaining: Ints, inner: Ints) -> Bools:
    """The legal values for the value number `index` of a decision, as a mask ``[batch, n]``.

    For tiles, `remaining` ``[batch]`` is the extent divided by the factors written so far, and
    `inner` ``[batch]`` is the product of these factors. Other kinds ignore both.
    """
    values = values_of(open_decision).values
    if open_decision.kind not in _FACTORED:
        return np.ones((len(remaining), len(values)), np.bool_)
    mask: Bools = remaining[:, None] % values[None, :] == 0
    if index == 0 and open_decision.limit:
        mask &= values[None, :] <= open_decision.limit
    position, factor = open_decision.partition
    # Factors are written innermost first. The last factor of the inner part must meet the rule.
    if open_decision.arity - 1 - index == position and factor > 1:
        mask &= (inner[:, None] * values[None, :]) % factor == 0
    return mask


def is_legal(open_decision: OpenDecision, index: int, remaining: int, inner: int, n: int) -> bool:
    """Whether `n`, one of the values, is legal as the value number `index`: one entry of `legal`.

    For one decision at a time this is ten times as fast.
    """
    if open_decision.kind not in _FACTORED:
        return True
    if remaining % n or (index == 0 and open_decision.limit and n > open_decision.limit):
        return False
    position, factor = open_decision.partition
    at_rule = open_decision.arity - 1 - index == position and factor > 1
    return not at_rule or inner * n % factor == 0


def to_values(open_decision: OpenDecision, decision: Decision) -> list[int]:
    """The values that are written for a decision. Raises `ValueError` if it is not legal."""
    if open_decision.kind in _FACTORED:
        if not is_open(open_decision):
            return []
        _check_factors(open_decision, decision)
        return list(reversed(decision[1:]))
    if open_decision.kind is DecisionKind.CATEGORY:
        return [int(values_of(open_decision).values[decision[0]])]
    return [decision[0]]


def to_decision(open_decision: OpenDecision, values: list[int]) -> Decision:
    """The decision that was written as `values`; the inverse of `to_values`."""
    if open_decision.kind in _FACTORED:
        if not is_open(open_decision):
            return (-1, *([1] * (open_decision.arity - 1)))
        outer = open_decision.extent
        for value in values:
            outer //= value
        return (outer, *reversed(values))
    if open_decision.kind is DecisionKind.CATEGORY:
        return (values_of(open_decision).index(values[0]),)
    return (values[0],)


def _check_factors(open_decision: OpenDecision, decision: Decision) -> None:
    """Check the factors of a tile: positive, legal, their product is the extent."""
    remaining, inner = open_decision.extent, 1
    if len(decision) != open_decision.arity:
        raise ValueError(f"{len(decision)} factors; expected {open_decision.arity}")
    for index, factor in enumerate(reversed(decision[1:])):
        if factor < 1 or remaining % factor:
            raise ValueError(f"{factor} does not divide {remaining}")
        if not is_legal(open_decision, index, remaining, inner, factor):
            raise ValueError(f"factor {factor} is not allowed at position {index} from inside")
        remaining //= factor
        inner *= factor
    if decision[0] != remaining:
        raise ValueError(f"the outermost factor is {decision[0]}; expected {remaining}")


@functools.lru_cache(maxsize=4096)
def divisors(n: int) -> list[int]:
    """All divisors of ``n >= 0`` in ascending order; ``[1]`` for 0."""
    small = [d for d in range(1, int(max(n, 1) ** 0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)}) if n else [1]
