"""One batch of the pipeline: its tasks, what is written for them, and what waits for a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tlmd.data.types import MeasureInput, Outcome, Proposal, Status, Task
from tlmd.pipeline.orders import MeasureOrder
from tlmd.pipeline.task_scheduler import TaskAllocation

_MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class BatchPlan:
    """The part of a batch that the store keeps.

    Example: ``BatchPlan(4, (("job-1", "t1f0", 8),), 1.7e9)``.
    """

    number: int
    allocations: tuple[tuple[str, str, int], ...]
    """Job id, task id and number of candidates."""
    created: float


@dataclass
class Batch:
    """A batch that is being written or measured."""

    number: int
    allocations: list[TaskAllocation]
    unwritten: int
    """Allocations that no generator has finished yet."""
    queue: deque[MeasureOrder] = field(default_factory=deque)
    """Orders that no slot has yet."""
    in_flight: int = 0
    """Candidates that slots have."""
    written: int = 0
    measured: int = 0
    versions: set[int] = field(default_factory=set)
    """Checkpoints that wrote it."""
    planned_at: float = 0.0
    begun: bool = False
    """A slot has got its first candidates."""

    def __post_init__(self) -> None:
        self._by_task: dict[tuple[str, str], list[TaskAllocation]] = {}
        for allocation in self.allocations:
            self._by_task.setdefault(allocation.task.task.key, []).append(allocation)

    def allocations_of(self, task: Task) -> list[TaskAllocation]:
        """The allocations of one task, of which several jobs may have one."""
        return self._by_task.get(task.key, [])

    @property
    def waiting(self) -> int:
        """Candidates that no slot has yet."""
        return sum(len(order.inputs) for order in self.queue)

    @property
    def is_written(self) -> bool:
        return self.unwritten == 0

    @property
    def is_complete(self) -> bool:
        return self.is_written and not self.queue and not self.in_flight

    def add(self, task: Task, proposals: list[Proposal], chunk: int) -> None:
        """Queue what was written for one task, in orders of at most `chunk` candidates."""
        self.written += len(proposals)
        inputs = [MeasureInput(p.candidate.id, p.trace) for p in proposals]
        for start in range(0, len(inputs), chunk):
            part = tuple(inputs[start : start + chunk])
            self.queue.append(MeasureOrder(self.number, task, part))

    def take(self, ready: Callable[[MeasureOrder], bool]) -> MeasureOrder | None:
        """Remove the first order that is `ready` from the queue; None if there is none."""
        for order in self.queue:
            if ready(order):
                self.queue.remove(order)
                self.in_flight += len(order.inputs)
                return order
        return None

    def take_back(self, order: MeasureOrder) -> None:
        """An order was answered, with outcomes or without."""
        self.in_flight -= len(order.inputs)


class Retries:
    """Sends the candidates of a slot that died out again, each in an order of its own.

    So the one that kills slots is found; it fails the third time. Candidates are counted by their
    ids, so none is measured twice and none is forgotten.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}
        self._workers: dict[str, set[str]] = {}  # by candidate: slots that it was tried on

    @property
    def has_suspects(self) -> bool:
        """Whether there are candidates with which a slot died."""
        return bool(self._attempts)

    def are_suspects(self, order: MeasureOrder) -> bool:
        """Whether a slot died with them: they only go to a slot that has no other order."""
        return self.has_suspects and any(c.candidate_id in self._attempts for c in order.inputs)

    def was_tried_on(self, worker: str, order: MeasureOrder) -> bool:
        """Whether this slot has lost one of the candidates: another one may do better."""
        return any(worker in self._workers.get(c.candidate_id, ()) for c in order.inputs)

    def again(self, batch: Batch, order: MeasureOrder, worker: str) -> list[str]:
        """Queue what `worker` has lost; the ids of candidates that have failed for good."""
        failed = []
        for candidate in order.inputs:
            self._workers.setdefault(candidate.candidate_id, set()).add(worker)
            attempts = self._attempts.get(candidate.candidate_id, 0) + 1
            self._attempts[candidate.candidate_id] = attempts
            if attempts >= _MAX_ATTEMPTS:
                del self._attempts[candidate.candidate_id]
                failed.append(candidate.candidate_id)
            else:
                batch.queue.appendleft(MeasureOrder(batch.number, order.task, (candidate,)))
        return failed

    def forget(self, order: MeasureOrder) -> None:
        """These candidates have outcomes."""
        for candidate in order.inputs:
            self._attempts.pop(candidate.candidate_id, None)
            self._workers.pop(candidate.candidate_id, None)


def crashed(reason: str) -> Outcome:
    """The outcome of a candidate that killed its slot too often."""
    return Outcome(Status.CRASH, detail=reason)
