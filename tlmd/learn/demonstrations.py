"""Demonstrations for the language model: policies that choose records, and replayed ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tlmd.data.config import SHIPPED
from tlmd.data.errors import BadInput
from tlmd.data.types import Record
from tlmd.tlm.demonstration import TaskDemonstrations
from tlmd.tlm.demonstration_file import read_demonstrations, write_demonstrations

REPLAY = "replay.msgpack.gz"
"""The file, beside TLM-base, with some demonstrations that fine-tuning shows again."""
_REPLAYED_TASKS, _REPLAYED_EACH = 500, 16

TOP = 8  # how many records `top` takes at most
NEAR = 1.25  # and how much slower than the best one they may be

# Given the newest records of one task on one machine, the ones to train on.
SelectionPolicy = Callable[[Sequence[Record]], list[Record]]


def best(records: Sequence[Record]) -> list[Record]:
    """The one best verified record (the TLM paper, OSDI'24: one sentence per task)."""
    fastest = _best(_verified(records))
    return [fastest] if fastest else []


def top(records: Sequence[Record]) -> list[Record]:
    """The `TOP` best verified records within `NEAR` times the best one's seconds, best first."""
    verified = _verified(records)
    first = _best(verified)
    if first is None:
        return []
    limit = NEAR * first.outcome.seconds
    rest = [r for r in verified if r is not first and r.outcome.seconds <= limit]
    rest.sort(key=lambda r: r.outcome.seconds)
    return [first, *rest][:TOP]


def quality(records: Sequence[Record]) -> list[Record]:
    """All records: the model learns their differences too; failures are the slowest."""
    return list(records)


POLICIES: dict[str, SelectionPolicy] = {"best": best, "top": top, "quality": quality}


def policy(name: str) -> SelectionPolicy:
    """The policy of this name; raises `BadInput` for an unknown one."""
    if name not in POLICIES:
        policies = ", ".join(POLICIES)
        raise BadInput(f"unknown demonstration policy {name!r}; use one of {policies}")
    return POLICIES[name]


def shares(records: Sequence[Record]) -> list[float]:
    """The speed of each record relative to the fastest of them, 0 to 1; 0 for a failure."""
    fastest = min((r.outcome.seconds for r in records), default=math.inf)
    return [fastest / r.outcome.seconds if math.isfinite(fastest) else 0.0 for r in records]


def _verified(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r.outcome.verified and math.isfinite(r.outcome.seconds)]


def _best(records: Sequence[Record]) -> Record | None:
    """The fastest record; an unverified or noisy one only if all are unverified or noisy."""
    return min(
        records,
        key=lambda r: (not r.outcome.verified, r.outcome.noisy, r.outcome.seconds),
        default=None,
    )


def read_replay() -> tuple[TaskDemonstrations, ...]:
    """The demonstrations that ship; empty where there are none. Raises `BadInput` if damaged."""
    path = SHIPPED / REPLAY
    return read_demonstrations(path) if path.exists() else ()


def write_replay(directory: Path, tasks: Sequence[TaskDemonstrations], seed: int) -> None:
    """Write some of the demonstrations of TLM-base beside it."""
    rng = random.Random(seed)
    chosen = rng.sample(tasks, min(_REPLAYED_TASKS, len(tasks)))
    write_demonstrations(directory / REPLAY, [_some(task, rng) for task in chosen])


def _some(task: TaskDemonstrations, rng: random.Random) -> TaskDemonstrations:
    count = min(_REPLAYED_EACH, len(task.demonstrations))
    return replace(task, demonstrations=tuple(rng.sample(task.demonstrations, count)))
