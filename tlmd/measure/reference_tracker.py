"""The tasks that have reference outputs, by which their candidates are checked."""

from __future__ import annotations

import logging

from tlmd.data.types import Outcome, Task
from tlmd.measure.protocol import NO_REFERENCE
from tlmd.measure.server.verify import ReferenceStore

_log = logging.getLogger("tlmd.measure")


class ReferenceTracker:
    """Says whether a task's unscheduled program has to run before its candidates."""

    def __init__(self, store: ReferenceStore) -> None:
        self._store = store
        self._known: set[str] = set()
        self._impossible: set[str] = set()  # their unscheduled program fails
        self._in_flight: set[str] = set()

    def needs_baseline(self, task: Task) -> bool:
        """Whether the task has no reference, and none is impossible."""
        if task.computation in self._known or task.computation in self._impossible:
            return False
        if self._store.has(task.computation):
            self._known.add(task.computation)
            return False
        return True

    def is_in_flight(self, task: Task) -> bool:
        """Whether the server is measuring the unscheduled program."""
        return task.computation in self._in_flight

    def started(self, task: Task) -> None:
        """The server has got the unscheduled program."""
        self._in_flight.add(task.computation)

    def lost(self, task: Task) -> None:
        """The server died before it finished the unscheduled program."""
        self._in_flight.discard(task.computation)

    def finished(self, task: Task, outcome: Outcome) -> None:
        """The unscheduled program was measured: there is a reference now, or there will be none."""
        self._in_flight.discard(task.computation)
        if outcome.ok:
            self._known.add(task.computation)
        else:
            self._impossible.add(task.computation)
            _log.warning("no baseline for %s: %s %s", task.name, outcome.status, outcome.detail)

    def check(self, task: Task, outcome: Outcome) -> None:
        """A reference can be damaged, or removed to make room: then it is made again."""
        if outcome.detail == NO_REFERENCE:
            self._known.discard(task.computation)

    def reset(self) -> None:
        """A server for another target starts: what failed for the last one may work now."""
        self._impossible.clear()
        self._in_flight.clear()
