"""Comparisons of finalists: which groups wait for one, and what the answers change."""

from __future__ import annotations

from collections import deque

from tlmd.pipeline.orders import CompareOrder, Worker
from tlmd.pipeline.state import PipelineState
from tlmd.pipeline.task_groups import TaskGroup
from tlmd.selection import retimed
from tlmd.types import Outcome


class Comparisons:
    """Has the finalists of a group compared, those of all its alternatives in one order."""

    def __init__(self, state: PipelineState) -> None:
        self._state = state
        self._waiting: deque[TaskGroup] = deque()  # that no slot has yet

    def want(self, group: TaskGroup) -> None:
        """Have the finalists of a group compared; another job may have asked for the same."""
        known = any(group.keys & other.keys for other in self._waiting)
        if not known and not group.is_comparing:
            self._waiting.append(group)

    def next(self, worker: Worker) -> CompareOrder | None:
        """An order for this slot; None where no group waits for one."""
        for group in [g for g in self._waiting if worker.accepts(g.target)]:
            self._waiting.remove(group)
            if finalists := group.begin_comparison():
                # With the tasks of all members, so that the answer ends it for all of them.
                tasks = tuple(member.task for member in group.members)
                return CompareOrder(tasks, tuple(record.candidate for record in finalists))
        return None

    def finish(self, order: CompareOrder, outcomes: tuple[Outcome, ...], step: int) -> None:
        """The answer to an order is there, without outcomes where it failed.

        `step` is the newest batch that a slot has begun.
        """
        found = {c.id: o for c, o in zip(order.finalists, outcomes, strict=False)}
        now = self._state.clock.now()
        for task in map(self._state.task, order.tasks):
            task.comparing = False
            known = [r for r in task.records if r.candidate.id in found]
            # With a batch number of its own it does not replace the earlier record in the store.
            compared = [retimed(r, found[r.candidate.id], now, max(step, r.batch)) for r in known]
            if compared:
                self._state.replace_records(task, compared)
