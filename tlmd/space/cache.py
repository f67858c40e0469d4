"""Task spaces in memory: making one takes TVM some tens of milliseconds."""

from __future__ import annotations

from collections import OrderedDict

from tlmd.data.types import Task
from tlmd.space.space import TaskSpace

_KEPT = 64


class SpaceCache:
    """Keeps the spaces of the tasks that were used last. Not thread-safe."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._spaces: OrderedDict[tuple[str, str], TaskSpace] = OrderedDict()

    def get(self, task: Task) -> TaskSpace:
        """The space of a task on its target. Raises what `TaskSpace` raises."""
        if task.key not in self._spaces:
            self._spaces[task.key] = TaskSpace(task)
            if len(self._spaces) > self._kept:
                self._spaces.popitem(last=False)
        self._spaces.move_to_end(task.key)
        return self._spaces[task.key]
