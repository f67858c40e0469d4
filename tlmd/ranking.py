"""Which record of a task is its best: what was timed side by side outranks what was timed alone."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import replace

from tlmd.types import Outcome, Record

FINALISTS = 4
# What disturbs a program from its first repeat to its last shows in no interval of its own.
_UNSEEN = 1.08


def fastest(records: Iterable[Record]) -> Record | None:
    """The best verified record, or None.

    A best-of-many over noisy times picks luck. So a record that was raced against others holds its
    place until another's whole interval lies clearly below its own. The best of before is in every
    race, so the newest decides; what lost an earlier one has a time of another moment.
    """
    raced, alone = None, None
    for record in records:
        if not _counts(record):
            continue
        if not record.outcome.raced:
            alone = _faster(alone, record)
        elif raced is None or record.created > raced.created:
            raced = record
        elif record.created == raced.created:
            raced = _faster(raced, record)
    if raced is None or alone is None:
        return raced or alone
    return alone if alone.outcome.high * _UNSEEN < raced.outcome.low else raced


def leading(records: Iterable[Record], count: int) -> tuple[Record, ...]:
    """The verified records with the shortest times, the best first."""
    good = filter(_counts, records)
    return tuple(heapq.nsmallest(count, good, key=lambda r: r.outcome.seconds))


def finalists(records: Iterable[Record], best: Record | None) -> tuple[Record, ...]:
    """`best` and those that may be faster than it for all that is known; none if there are none.

    They have not been raced against each other yet; at most `FINALISTS`, the most likely ones.
    """
    if best is None or not best.outcome.high:
        return ()
    rivals = (
        r
        for r in records
        if _counts(r)
        and r is not best
        and r.outcome.low <= best.outcome.high * _UNSEEN
        and not (r.outcome.raced and best.outcome.raced)
    )
    nearest = heapq.nsmallest(FINALISTS - 1, rivals, key=lambda r: r.outcome.seconds)
    return (best, *nearest) if nearest else ()


def retimed(record: Record, outcome: Outcome, created: float, batch: int) -> Record:
    """The record after a race: its newest time with what is known of its outputs."""
    old = record.outcome
    outcome = replace(
        outcome, verified=old.verified, max_abs_err=old.max_abs_err, energy_j=old.energy_j
    )
    return replace(record, outcome=outcome, created=created, batch=batch)


def _counts(record: Record) -> bool:
    """It has a time, and its outputs are right."""
    return record.outcome.verified and math.isfinite(record.outcome.seconds)


def _faster(one: Record | None, other: Record) -> Record:
    if one is None or other.outcome.seconds < one.outcome.seconds:
        return other
    return one
