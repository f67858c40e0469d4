"""One batch of the pipeline: its turns, what is written of it, and what waits for a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tlmd.pipeline.allocation import Turn
from tlmd.pipeline.orders import MeasureOrder
from tlmd.types import Outcome, Proposal, Status, Task

_ATTEMPTS = 3


@dataclass(frozen=True)
class BatchPlan:
    """What the store keeps of a batch: who got turns, and which versions wrote it.

    Example: ``BatchPlan(4, (("job-1", "t1f0", 8),), 1.7e9)``.
    """

    number: int
    turns: tuple[tuple[str, str, int], ...]
    created: float


@dataclass
class Batch:
    """``unwritten`` turns wait for a generator or are with one; ``queue`` waits for a slot."""

    number: int
    turns: list[Turn]
    unwritten: int
    queue: deque[MeasureOrder] = field(default_factory=deque)
    flying: int = 0  # candidates with a slot
    written: int = 0
    measured: int = 0
    versions: set[int] = field(default_factory=set)
    planned_at: float = 0.0
    begun: bool = False

    @property
    def waiting(self) -> int:
        """Candidates that no slot has yet."""
        return sum(len(order.proposals) for order in self.queue)

    @property
    def is_written(self) -> bool:
        return self.unwritten == 0

    @property
    def is_complete(self) -> bool:
        return self.is_written and not self.queue and not self.flying

    def put(self, task: Task, proposals: list[Proposal], chunk: int) -> None:
        """Cut what was written for one task into orders of at most `chunk` candidates."""
        self.written += len(proposals)
        for start in range(0, len(proposals), chunk):
            part = tuple(proposals[start : start + chunk])
            self.queue.append(MeasureOrder(self.number, task, part))

    def take(self, ready: Callable[[MeasureOrder], bool]) -> MeasureOrder | None:
        """The first order that is `ready`, or None."""
        for order in self.queue:
            if ready(order):
                self.queue.remove(order)
                self.flying += len(order.proposals)
                return order
        return None

    def land(self, order: MeasureOrder) -> None:
        """An order came back, with outcomes or without."""
        self.flying -= len(order.proposals)


class Retries:
    """Candidates whose slot died go back alone, to tell which one it was; the third time they fail.

    A candidate is named by its id, so nothing is measured twice or forgotten, however often it
    changes hands.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}

    def suspects(self, order: MeasureOrder) -> bool:
        """Whether these were with a slot that died: they go to a slot that has nothing else."""
        return bool(self._attempts) and any(
            p.candidate.id in self._attempts for p in order.proposals
        )

    def again(self, batch: Batch, order: MeasureOrder) -> list[Proposal]:
        """Queue what was lost; returns the candidates that are given up."""
        given_up = []
        for proposal in order.proposals:
            attempts = self._attempts.get(proposal.candidate.id, 0) + 1
            self._attempts[proposal.candidate.id] = attempts
            if attempts >= _ATTEMPTS:
                del self._attempts[proposal.candidate.id]
                given_up.append(proposal)
            else:
                batch.queue.appendleft(MeasureOrder(batch.number, order.task, (proposal,)))
        return given_up

    def forget(self, order: MeasureOrder) -> None:
        """These came back with an outcome."""
        for proposal in order.proposals:
            self._attempts.pop(proposal.candidate.id, None)


def crashed(reason: str) -> Outcome:
    """The outcome of a candidate that is given up."""
    return Outcome(Status.CRASH, detail=reason)
