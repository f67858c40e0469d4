"""The measuring part of the pipeline: gives orders to the slots and records their answers."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from tlmd.data.types import Baseline, Outcome, Record, TargetInfo, Task
from tlmd.pipeline.batches import Batch, Retries, crashed
from tlmd.pipeline.comparisons import Comparisons
from tlmd.pipeline.learning import Learning
from tlmd.pipeline.orders import (
    BaselineOrder,
    CompareOrder,
    MeasureOrder,
    OrderDone,
    OrderFailed,
    OrderLost,
    SlotOrder,
    Worker,
    WorkerKind,
)
from tlmd.pipeline.state import PipelineState
from tlmd.pipeline.task_state import TaskState

_log = logging.getLogger("tlmd.pipeline")

_MAX_ERRORS = 3  # errors of a slot in a row; then it is set aside
_ASIDE_S = 60.0  # until it may try again
_RATE_ANSWERS = 64  # answers that the rate is computed from

SlotEvent = OrderDone | OrderLost | OrderFailed


class Measuring:
    """Keeps every slot busy. A task's unscheduled program is measured before its candidates.

    `on_records(batch, task, records)` is called with every answer, `on_errors(message, target)`
    when all slots of a target keep failing.
    """

    def __init__(
        self,
        state: PipelineState,
        learning: Learning,
        on_records: Callable[[Batch, TaskState, list[Record]], None],
        on_errors: Callable[[str, TargetInfo], None],
    ) -> None:
        self.step = -1  # the newest batch that a slot has begun
        self.lag = 0  # of the last candidates
        self._state = state
        self._options = state.options.pipeline
        self.comparisons = Comparisons(state)
        self._learning = learning
        self._on_records = on_records
        self._on_errors = on_errors
        self._baselines: dict[tuple[str, str], BaselineOrder] = {}  # that no slot has yet
        self._without_baseline: dict[tuple[str, str], list[TaskState]] = {}
        self._retries = Retries()
        self._errors: Counter[str] = Counter()  # by slot: in a row
        self._set_aside_until: dict[str, float] = {}
        self._answers: deque[tuple[float, int]] = deque(maxlen=_RATE_ANSWERS)

    @property
    def rate(self) -> float:
        """Measured candidates per second, recently; 0 where it is unknown."""
        if len(self._answers) < 2:
            return 0.0
        seconds = self._answers[-1][0] - self._answers[0][0]
        return sum(n for _, n in list(self._answers)[1:]) / max(seconds, 1e-3)

    @property
    def seconds_left(self) -> float | None:
        """For how long the slots have work, until one answer before the end; None: unknown."""
        left = sum(b.waiting + b.in_flight for b in self._state.batches) - self._options.chunk
        return max(left, 0) / self.rate if self.rate else None

    def reset_rate(self) -> None:
        """No orders are sent for a while, which must not lower the rate."""
        self._answers.clear()

    def want_baseline(self, task: TaskState) -> None:
        """Have the unscheduled program measured, once for all alternatives."""
        if task.baseline is not None:
            return
        key = _computed(task.task)
        waiting = self._without_baseline.setdefault(key, [])
        if not waiting:
            self._baselines[key] = BaselineOrder(task.task)
        if task not in waiting:
            waiting.append(task)

    def send_orders(self) -> None:
        """Give every slot as many orders as it may hold."""
        nothing_for: set[TargetInfo | None] = set()
        for worker in self._usable():
            while worker.target not in nothing_for and self._has_room(worker):
                order = self._next(worker)
                if order is None:
                    if not self._retries.has_suspects:  # else it depends on the slot
                        nothing_for.add(worker.target)
                    break
                self._state.send(worker.name, order)

    def _usable(self) -> list[Worker]:
        """The slots but for those that were set aside a moment ago."""
        now = self._state.pool.now()
        slots = self._state.workers_of(WorkerKind.MEASURER)
        return [w for w in slots if now >= self._set_aside_until.get(w.name, now)]

    def _has_room(self, worker: Worker) -> bool:
        orders = self._state.orders.get(worker.name, ())
        if len(orders) >= self._options.depth:
            return False
        if not self._retries.has_suspects:
            return True
        return not any(
            isinstance(o, MeasureOrder) and self._retries.are_suspects(o) for o in orders
        )

    def _next(self, worker: Worker) -> SlotOrder | None:
        """Finalists first, then candidates and the baselines that they need, then baselines."""
        if (comparison := self.comparisons.next(worker)) is not None:
            return comparison
        orders = self._state.orders.get(worker.name, ())
        if not any(isinstance(o, BaselineOrder) for o in orders):
            # One baseline at a time beside candidates, so that the next batch need not wait for it.
            for batch in self._state.batches:
                if (baseline := self._baseline_for(batch, worker)) is not None:
                    return baseline
        for batch in self._state.batches:
            order = batch.take(lambda order: self._suits(worker, order))
            if order is not None:
                self._begin(batch)
                return self._with_incumbent(order)
            if (baseline := self._baseline_for(batch, worker)) is not None:
                return baseline
            if self._options.strict and not batch.is_complete:
                return None  # a step ends when all of its batch is measured
        for key, baseline in self._baselines.items():
            if worker.accepts(baseline.task.target):
                return self._baselines.pop(key)
        return None

    def _baseline_for(self, batch: Batch, worker: Worker) -> BaselineOrder | None:
        """A baseline that candidates of the batch need."""
        if not self._baselines:
            return None
        for allocation in batch.allocations:
            baseline = self._baselines.get(_computed(allocation.task.task))
            if baseline is not None and worker.accepts(baseline.task.target):
                return self._baselines.pop(_computed(baseline.task))
        return None

    def _suits(self, worker: Worker, order: MeasureOrder) -> bool:
        if self._state.task(order.task).baseline is None:
            return False
        if not worker.accepts(order.task.target):
            return False
        if not self._retries.are_suspects(order):
            return True
        others = [w for w in self._usable() if w is not worker and w.accepts(order.task.target)]
        if self._retries.was_tried_on(worker.name, order) and not all(
            self._retries.was_tried_on(w.name, order) for w in others
        ):
            return False
        return not self._state.orders.get(worker.name)

    def _with_incumbent(self, order: MeasureOrder) -> MeasureOrder:
        best = self._state.task(order.task).best
        if best is None:
            return order
        seconds = best.outcome.seconds
        return replace(order, inputs=tuple(replace(i, incumbent_s=seconds) for i in order.inputs))

    def _begin(self, batch: Batch) -> None:
        if not batch.begun:
            batch.begun = True
            self.step = max(self.step, batch.number)
            versions = sorted(batch.versions)
            self._state.emit("measuring", batch=batch.number, versions=versions)

    def on_event(self, event: SlotEvent) -> None:
        """A slot answered an order, failed, or died."""
        if isinstance(event, OrderFailed) and isinstance(event.order, SlotOrder):
            self._count_error(event, event.order.task.target)
        elif isinstance(event, OrderDone):
            self._errors.pop(event.worker, None)
            self._set_aside_until.pop(event.worker, None)
        if isinstance(event.order, BaselineOrder):
            self._on_baseline(event, event.order)
        elif isinstance(event.order, CompareOrder):
            answer = event.answer if isinstance(event, OrderDone) else ()
            outcomes = answer if isinstance(answer, tuple) else ()
            self.comparisons.finish(event.order, outcomes, max(self.step, 0))
        elif isinstance(event.order, MeasureOrder):
            self._on_candidates(event, event.order)

    def _on_baseline(self, event: SlotEvent, order: BaselineOrder) -> None:
        if not isinstance(event, OrderDone) or not isinstance(event.answer, Baseline):
            self._baselines[_computed(order.task)] = order
            return
        for task in self._without_baseline.pop(_computed(order.task), []):
            task.baseline = replace(event.answer, task_id=task.task.id)
            if math.isfinite(event.answer.seconds):  # a failure is not kept: it is tried again
                self._state.writer.baselines.append(task.baseline)

    def _on_candidates(self, event: SlotEvent, order: MeasureOrder) -> None:
        batch = self._state.batch(order.batch)
        batch.take_back(order)
        task = self._state.task(order.task)
        if isinstance(event, OrderDone) and isinstance(event.answer, tuple):
            self._retries.forget(order)
            ids = [candidate.candidate_id for candidate in order.inputs]
            self._record(batch, task, list(zip(ids, event.answer, strict=True)))
            return
        failed = self._retries.again(batch, order, event.worker)
        outcome = crashed("its slot was lost three times")
        self._record(batch, task, [(candidate_id, outcome) for candidate_id in failed])

    def _record(
        self, batch: Batch, task: TaskState, outcomes: Sequence[tuple[str, Outcome]]
    ) -> None:
        """Make records of the pending candidates with these ids."""
        records, created = [], self._state.clock.now()
        for candidate_id, outcome in outcomes:
            proposal = task.pending[candidate_id]
            records.append(
                Record(
                    proposal.candidate,
                    outcome,
                    version=proposal.version,
                    batch=batch.number,
                    fingerprint=task.task.target.fingerprint,
                    module_hash=proposal.module_hash,
                    created=created,
                    lag=max(0, self._learning.version - proposal.picked_by),
                    features=proposal.features,
                    writer=proposal.writer,
                )
            )
        batch.measured += len(records)
        if _log.isEnabledFor(logging.DEBUG):
            for r in records:
                _log.debug("%s %s: %s", task.task.name, r.candidate.id, _summary(r.outcome))
        self.lag = max((r.lag for r in records), default=self.lag)
        self._state.add_records(task, records)
        self._answers.append((self._state.pool.now(), len(records)))
        self._on_records(batch, task, records)

    def _count_error(self, event: OrderFailed, target: TargetInfo) -> None:
        """The slot itself has failed, not a candidate."""
        self._state.emit("slot_failed", worker=event.worker, error=event.error)
        self._errors[event.worker] += 1
        if self._errors[event.worker] < _MAX_ERRORS:
            return
        self._set_aside_until[event.worker] = self._state.pool.now() + _ASIDE_S
        if not any(w.accepts(target) for w in self._usable()):
            self._errors.clear()
            self._set_aside_until.clear()
            self._on_errors(event.error, target)


def _computed(task: Task) -> tuple[str, str]:
    """Equal for the alternatives of one computation on one kind of hardware."""
    return task.computation, task.target.fingerprint


def _summary(outcome: Outcome) -> str:
    if outcome.ok:
        return f"{outcome.seconds * 1e6:.1f} µs"
    return f"{outcome.status}: {outcome.detail}"
