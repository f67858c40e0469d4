"""Which values are legal, slot by slot: the mask that keeps sampling inside the space.

A slot's decision is written as one or more *values*, each a row of token ids of fixed width. The
grammar lists the values a place can ever hold and, given what was written before, which of them
are legal now. Only values that carry information are written: a tile's factors from the innermost
outwards, without the outermost, which the others imply.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tlmd.language.numbers import fixed, width
from tlmd.language.vocabulary import IDS, MAX_LOCATIONS, ids
from tlmd.types import Decision, Slot, SlotKind

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
INLINE, ROOT = -2, -1
_FACTORED = (SlotKind.TILE, SlotKind.PARTITION)


@dataclass(frozen=True)
class Values:
    """What a place can hold: ``values [n]`` and their token ids, ``codes [n, width]``."""

    values: Ints
    codes: Ints

    def index(self, value: int) -> int:
        """The row of `value`; raises `ValueError` for a value the place cannot hold."""
        found = np.flatnonzero(self.values == value)
        if not len(found):
            raise ValueError(f"{value} is not one of {self.values.tolist()}")
        return int(found[0])


@functools.lru_cache(maxsize=4096)
def values_of(slot: Slot) -> Values:
    """The values of each place of `slot` (the same for all its places)."""
    if slot.kind is SlotKind.LOCATION:
        words = ["at:inline", "at:root", *(f"at:{i}" for i in range(MAX_LOCATIONS))]
        codes = np.array([[IDS[w]] for w in words], np.int64)
        return Values(np.arange(INLINE, MAX_LOCATIONS, dtype=np.int64), codes)
    numbers = _numbers(slot)
    digits = max(map(width, numbers))
    codes = np.array([ids(fixed(n, digits)) for n in numbers], np.int64)
    return Values(np.array(numbers, np.int64), codes)


def _numbers(slot: Slot) -> list[int]:
    if slot.kind in _FACTORED:
        return divisors(slot.extent)
    if slot.kind is SlotKind.CATEGORY and len(set(slot.options)) < len(slot.options):
        return list(range(len(slot.options)))  # equal options: say which by index
    if min(slot.options) < 0:
        return list(range(len(slot.options)))
    return list(slot.options)


def places(slot: Slot) -> int:
    """How many values are written for `slot`: 0 where nothing is open."""
    if slot.kind in _FACTORED:
        return slot.arity - 1 if is_open(slot) else 0
    return 1


def is_open(slot: Slot) -> bool:
    """Whether a tile can be chosen at all: its extent is known and its partition rule can hold."""
    return slot.extent > 0 and slot.extent % slot.partition[1] == 0


def legal(slot: Slot, place: int, remaining: Ints, inner: Ints) -> Bools:
    """The legal values of a place, as a mask ``[batch, n]``.

    For tiles `remaining` ``[batch]`` is the extent not yet given to inner factors and `inner` the
    product of the factors written so far; other kinds ignore both.
    """
    values = values_of(slot).values
    if slot.kind not in _FACTORED:
        return np.ones((len(remaining), len(values)), np.bool_)
    mask: Bools = remaining[:, None] % values[None, :] == 0
    if place == 0 and slot.limit:
        mask &= values[None, :] <= slot.limit
    position, factor = slot.partition
    # Factors are written innermost first; the last one of the inner part must complete the rule.
    if slot.arity - 1 - place == position and factor > 1:
        mask &= (inner[:, None] * values[None, :]) % factor == 0
    return mask


def to_values(slot: Slot, decision: Decision) -> list[int]:
    """The values that are written for a decision of `slot`; `ValueError` if it is not legal."""
    if slot.kind in _FACTORED:
        if not is_open(slot):
            return []
        _check_factors(slot, decision)
        return list(reversed(decision[1:]))
    if slot.kind is SlotKind.CATEGORY:
        return [int(values_of(slot).values[decision[0]])]
    return [decision[0]]


def to_decision(slot: Slot, values: list[int]) -> Decision:
    """The decision that `values` say; the inverse of `to_values`."""
    if slot.kind in _FACTORED:
        if not is_open(slot):
            return (-1, *([1] * (slot.arity - 1)))
        outer = slot.extent
        for value in values:
            outer //= value
        return (outer, *reversed(values))
    if slot.kind is SlotKind.CATEGORY:
        return (values_of(slot).index(values[0]),)
    return (values[0],)


def _check_factors(slot: Slot, decision: Decision) -> None:
    """Factors must be positive, multiply to the extent, and keep the innermost limit."""
    remaining, inner = slot.extent, 1
    if len(decision) != slot.arity:
        raise ValueError(f"{len(decision)} factors where {slot.arity} are due")
    for place, factor in enumerate(reversed(decision[1:])):
        if factor < 1 or remaining % factor:
            raise ValueError(f"{factor} does not divide {remaining}")
        row = legal(slot, place, np.array([remaining]), np.array([inner]))[0]
        if not row[values_of(slot).index(factor)]:
            raise ValueError(f"factor {factor} is not allowed at place {place}")
        remaining //= factor
        inner *= factor
    if decision[0] != remaining:
        raise ValueError(f"the outermost factor is {decision[0]}, the others imply {remaining}")


@functools.lru_cache(maxsize=4096)
def divisors(n: int) -> list[int]:
    """All divisors of ``n >= 0`` in ascending order; ``[1]`` for 0."""
    small = [d for d in range(1, int(max(n, 1) ** 0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)}) if n else [1]
