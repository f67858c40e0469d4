"""The part of a task's history that each generator has: an order carries only the rest."""

from __future__ import annotations

from collections.abc import Collection

from tlmd.pipeline.task_state import TaskState


class SentHistories:
    """How many entries of `TaskState.history` each generator was sent, by task."""

    def __init__(self) -> None:
        self._sent: dict[str, dict[tuple[str, str], tuple[int, int]]] = {}

    def news(self, worker: str, task: TaskState) -> tuple[tuple[tuple[str, str], ...], int]:
        """The entries that a generator lacks, which it is sent now, and how many it has.

        0: it must forget those that it has.
        """
        sent = self._sent.setdefault(worker, {})
        begun, count = sent.get(task.task.key, (0, 0))
        if begun != task.history_begun:
            count = 0
        sent[task.task.key] = (task.history_begun, len(task.history))
        return tuple(task.history[count:]), count

    def forget_tasks(self, tasks: Collection[tuple[str, str]]) -> None:
        """Their histories begin anew when they are read from the store again."""
        for sent in self._sent.values():
            for key in tasks:
                sent.pop(key, None)

    def forget(self, worker: str) -> None:
        """A generator has died or failed: it may have any part of the history."""
        self._sent.pop(worker, None)
