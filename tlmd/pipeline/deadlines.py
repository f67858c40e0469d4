"""Orders that take too long are given up: their workers are replaced, and the work goes on.

A slot has limits of its own for each candidate, so its orders have none here.
"""

from __future__ import annotations

from dataclasses import dataclass

from tlmd.pipeline.orders import Order, PublishOrder, TrainOrder, WorkerKind
from tlmd.pipeline.state import PipelineState

_LONGEST_STEP_S = 5.0  # a longer one means that this process or the machine stood still


@dataclass
class _Wait:
    """For how long the first order of a worker was waited for."""

    order: Order
    seconds: float = 0.0


class Deadlines:
    """Counts how long generators, the trainer and the registry take for an order.

    Time in which the daemon itself stood still does not count: the answers may be there already.
    """

    def __init__(self, state: PipelineState) -> None:
        self._state = state
        self._waits: dict[str, _Wait] = {}
        self._checked_at = state.pool.now()

    def check(self) -> None:
        """Give up what is overdue. Call it after each step, when all events were handled."""
        state, now = self._state, self._state.pool.now()
        passed, self._checked_at = min(now - self._checked_at, _LONGEST_STEP_S), now
        waits: dict[str, _Wait] = {}
        for worker in list(state.workers.values()):
            orders = state.orders.get(worker.name)
            if worker.kind is WorkerKind.MEASURER or not orders:
                continue
            wait = self._waits.get(worker.name)
            if wait is None or wait.order is not orders[0]:
                waits[worker.name] = _Wait(orders[0])
                continue
            wait.seconds += passed
            if wait.seconds < self._limit(wait.order):
                waits[worker.name] = wait
                continue
            kind = type(wait.order).__name__
            state.emit("overdue", worker=worker.name, order=kind, seconds=round(wait.seconds))
            state.pool.replace(worker.name)
        self._waits = waits

    def _limit(self, order: Order) -> float:
        options = self._state.options
        if isinstance(order, TrainOrder):
            return options.train.timeout
        if isinstance(order, PublishOrder):
            return options.registry.timeout
        return options.generate.timeout
