"""Selects the best record of a task, and the finalists that a slot has to compare.

Times from one finalist comparison count more than times that were measured alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from tlmd.data.types import Outcome, Record

FINALISTS = 4
# A disturbance that lasts for all repeats of a program does not widen its interval.
_HIDDEN_DISTURBANCE = 1.08


def fastest(records: Iterable[Record]) -> Record | None:
    """The best verified record, or None.

    The fastest of many noisy times is often a lucky one. So the winner of a comparison stays the
    best until another record's whole interval is clearly below its own. The best record is in every
    comparison, so the newest comparison decides; times of an older one are from another moment.
    """
    return winner(*leaders(records))


def leaders(records: Iterable[Record]) -> tuple[Record | None, Record | None]:
    """The best records that were compared and that were timed alone; those of parts can be merged.

    ``leaders([*leaders(a), *leaders(b)])`` are those of all records of a and b.
    """
    compared, alone = None, None
    for record in records:
        if not _counts(record):
            continue
        if not record.outcome.compared:
            alone = _faster(alone, record)
        elif compared is None or record.created > compared.created:
            compared = record
        elif record.created == compared.created:
            compared = _faster(compared, record)
    return compared, alone


def winner(compared: Record | None, alone: Record | None) -> Record | None:
    """The better one of `leaders`, or None."""
    if compared is None or alone is None:
        return compared or alone
    return alone if alone.outcome.high * _HIDDEN_DISTURBANCE < compared.outcome.low else compared


def leading(records: Iterable[Record], count: int) -> tuple[Record, ...]:
    """The verified records with the shortest times, the best first."""
    good = filter(_counts, records)
    return tuple(sorted(good, key=_order)[:count])


def finalists(records: Iterable[Record], best: Record | None) -> tuple[Record, ...]:
    """`best` and all records that could be faster than it; empty where there are none.

    At most `FINALISTS`: of each other task the most likely one, because beside a busy neighbour the
    times of one alternative may be corrected by too much, and of all the most likely ones. Records
    that were compared with the best one of their task, or with `best` itself, are left out; records
    of another task may not have been compared.
    """
    if best is None or not best.outcome.high:
        return ()
    rivals = (
        r
        for r in records
        if _counts(r)
        and r is not best
        and r.outcome.low <= best.outcome.high * _HIDDEN_DISTURBANCE
        and not _were_compared(r, best)
    )
    ordered = sorted(rivals, key=_order)
    firsts: dict[str, Record] = {}
    for record in ordered:
        firsts.setdefault(record.candidate.task_id, record)
    firsts.pop(best.candidate.task_id, None)
    # In the order of a dict each is there once, at its first place.
    chosen = {r.candidate.id: r for r in (*firsts.values(), *ordered)}
    return (best, *list(chosen.values())[: FINALISTS - 1]) if chosen else ()


def retimed(record: Record, outcome: Outcome, created: float, batch: int) -> Record:
    """The record after a comparison: the new time with the old check of its outputs."""
    old = record.outcome
    outcome = replace(
        outcome, verified=old.verified, max_abs_err=old.max_abs_err, energy_j=old.energy_j
    )
    return replace(record, outcome=outcome, created=created, batch=batch)


def _order(record: Record) -> tuple[float, float]:
    """The sort key of a record: its time; where a limit made two equal, the fastest sample."""
    return record.outcome.seconds, min(record.outcome.samples, default=math.inf)


def _were_compared(record: Record, best: Record) -> bool:
    """Whether a comparison has shown that `record` is slower than `best`."""
    if not (record.outcome.compared and best.outcome.compared):
        return False
    return record.candidate.task_id == best.candidate.task_id or record.created == best.created


def _counts(record: Record) -> bool:
    """It has a time, and its outputs are right."""
    return record.outcome.verified and math.isfinite(record.outcome.seconds)


def _faster(one: Record | None, other: Record) -> Record:
    return other if one is None or _order(other) < _order(one) else one
