"""Records and checkpoints for the tests of learning."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.support import modules
from tlmd.data.types import Candidate, Outcome, Record, Status, Task
from tlmd.learn.candidate_encoder import Encoder
from tlmd.space.space import TaskSpace
from tlmd.tlm import network
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.cost_model import CostModel
from tlmd.tlm.demonstration import TaskDemonstrations

GEMM, ADD = modules.gemm(), modules.elementwise()


def record(candidate: Candidate, seconds: float, **changes: object) -> Record:
    """A verified record, or a failure for infinite seconds."""
    outcome = Outcome(Status.OK, (seconds,), verified=True)
    if not math.isfinite(seconds):
        outcome = Outcome(Status.RUN_ERROR)
    return replace(Record(candidate, outcome, fingerprint="here"), **changes)  # type: ignore[arg-type]


def numbered(*seconds: float) -> list[Record]:
    return [record(Candidate("t", 0, ((i,),)), s) for i, s in enumerate(seconds)]


def measured(task: Task, count: int, seed: int = 0) -> list[Record]:
    """Random candidates; the larger the innermost factors, the faster it pretends to be."""
    space, rng = TaskSpace(task), Random(seed)
    found = {c.id: c for c in (space.random(rng) for _ in range(2 * count))}
    records = []
    for number, candidate in enumerate(list(found.values())[:count]):
        inner = math.prod(d[-1] for d in candidate.decisions if len(d) > 1)
        seconds = math.inf if number % 10 == 9 else 1e-3 / (1 + inner)
        records.append(record(candidate, seconds, created=float(number)))
    return records


def fast_in_one_sketch(space: TaskSpace, count: int, seed: int, slow: float) -> TaskDemonstrations:
    """Random candidates: those of sketch 1 are the fastest, the others have the share `slow`."""
    encoder, rng = Encoder(space), Random(seed)
    shown = []
    for _ in range(count):
        candidate = space.random(rng)
        encoded = encoder.encode(candidate)
        assert encoded is not None
        shown.append(replace(encoded, share=1.0 if candidate.sketch == 1 else slow))
    return TaskDemonstrations(space.task.id, encoder.prompt, tuple(shown))


def fresh() -> Checkpoint:
    return Checkpoint(0, "nano", network.create("nano"), CostModel())


def never() -> bool:
    return False


def after(calls: int) -> Callable[[], bool]:
    """Says stop from the given call on."""
    left = iter(range(calls))
    return lambda: next(left, None) is None
