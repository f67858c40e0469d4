"""Comparisons of finalists: which groups wait for one, and what the answers change."""

from __future__ import annotations

from tlmd.data.selection import retimed
from tlmd.data.types import Outcome
from tlmd.pipeline.orders import CompareOrder, Worker
from tlmd.pipeline.state import PipelineState
from tlmd.pipeline.task_groups import TaskGroup


class Comparisons:
    """Has the finalists of a group compared, those of all its alternatives in one order."""

    def __init__(self, state: PipelineState) -> None:
        self._state = state
        self._waiting: dict[TaskGroup, set[tuple[str, str]]] = {}  # that no slot has yet
        self._keys: set[tuple[str, str]] = set()  # of the tasks of these

    def want(self, group: TaskGroup) -> None:
        """Have the finalists of a group compared; another job may have asked for the same."""
        if group in self._waiting or group.is_comparing:
            return
        keys = group.keys
        if not keys & self._keys:
            self._waiting[group] = keys
            self._keys |= keys

    def next(self, worker: Worker) -> CompareOrder | None:
        """An order for this slot; None where no group waits for one."""
        while group := next((g for g in self._waiting if worker.accepts(g.target)), None):
            self._keys -= self._waiting.pop(group)
            if finalists := group.begin_comparison():
                # With the tasks of all members, so that the answer ends it for all of them.
                tasks = tuple(member.task for member in group.members)
                return CompareOrder(tasks, tuple(record.candidate for record in finalists))
        return None

    def finish(self, order: CompareOrder, outcomes: tuple[Outcome, ...], step: int) -> None:
        """The answer to an order is there, without outcomes where it failed.

        `step` is the newest batch that a slot has begun.
        """
        outcome_by_id = {c.id: o for c, o in zip(order.finalists, outcomes, strict=False)}
        now = self._state.clock.now()
        for task in map(self._state.task, order.tasks):
            task.comparing = False
            earlier = [r for r in task.records if r.candidate.id in outcome_by_id]
            # With a batch number of its own it does not replace the earlier record in the store.
            compared = [
                retimed(r, outcome_by_id[r.candidate.id], now, max(step, r.batch)) for r in earlier
            ]
            if compared:
                self._state.replace_records(task, compared)
