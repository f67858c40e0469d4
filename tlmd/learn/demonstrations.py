"""Policies that choose which records become demonstrations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tlmd.errors import BadInput
from tlmd.language.sentence import BEST_QUALITY, quality_word
from tlmd.types import Record

TOP = 8  # how many records `top` takes at most
NEAR = 1.25  # and how much slower than the best one they may be


@dataclass(frozen=True)
class Chosen:
    """A record to train on, and the quality word of its sentence.

    Example: ``Chosen(record, "quality:7")``.
    """

    record: Record
    quality: str


# Given the newest records of one task on one machine, the ones to train on.
SelectionPolicy = Callable[[Sequence[Record]], list[Chosen]]


def best(records: Sequence[Record]) -> list[Chosen]:
    """The one best verified record (the TLM paper, OSDI'24: one sentence per task)."""
    found = _best(_verified(records))
    return [Chosen(found, BEST_QUALITY)] if found else []


def top(records: Sequence[Record]) -> list[Chosen]:
    """The `TOP` best verified records within `NEAR` times the best one's seconds, best first."""
    verified = _verified(records)
    first = _best(verified)
    if first is None:
        return []
    limit = NEAR * first.outcome.seconds
    rest = [r for r in verified if r is not first and r.outcome.seconds <= limit]
    rest.sort(key=lambda r: r.outcome.seconds)
    return [Chosen(r, BEST_QUALITY) for r in (first, *rest)[:TOP]]


def quality(records: Sequence[Record]) -> list[Chosen]:
    """All records, each with the quality word of its time; failures have quality 0."""
    found = _best([r for r in records if math.isfinite(r.outcome.seconds)])
    reference = found.outcome.seconds if found else math.inf
    return [Chosen(r, quality_word(reference, r.outcome.seconds)) for r in records]


POLICIES: dict[str, SelectionPolicy] = {"best": best, "top": top, "quality": quality}


def policy(name: str) -> SelectionPolicy:
    """The policy of this name; raises `BadInput` for an unknown one."""
    if name not in POLICIES:
        known = ", ".join(POLICIES)
        raise BadInput(f"unknown demonstration policy {name!r}; use one of {known}")
    return POLICIES[name]


def _verified(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r.outcome.verified and math.isfinite(r.outcome.seconds)]


def _best(records: Sequence[Record]) -> Record | None:
    """The fastest record; an unverified or noisy one only if all are unverified or noisy."""
    return min(
        records,
        key=lambda r: (not r.outcome.verified, r.outcome.noisy, r.outcome.seconds),
        default=None,
    )
