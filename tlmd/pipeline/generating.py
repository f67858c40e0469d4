"""The generating part of the pipeline: plans batches, and has generators write them."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import replace

from tlmd.data import wire
from tlmd.data.types import JobState
from tlmd.pipeline.batches import Batch, BatchPlan
from tlmd.pipeline.learning import Learning
from tlmd.pipeline.orders import (
    OrderDone,
    OrderFailed,
    OrderLost,
    SwapOrder,
    WorkerKind,
    WriteOrder,
    Written,
)
from tlmd.pipeline.sent_histories import SentHistories
from tlmd.pipeline.state import PipelineState
from tlmd.pipeline.task_scheduler import TaskScheduler
from tlmd.pipeline.tuning_jobs import TuningJob

_LEAD = 2.0  # a batch is planned when the slots have work for less than this many writing times
_MIN_WRITE_S = 0.2
_MAX_LOSSES = 3  # generators that die in a row while they write for a task; then it is exhausted
_FEWER, _MORE = 0.7, 1.1  # factors by which the number of written candidates adapts


class Generating:
    """Plans batches and has them written.

    A newer checkpoint is swapped in only between two batches, so that one version writes all of a
    batch. Each generator says itself which version it uses.
    """

    def __init__(self, state: PipelineState, learning: Learning, first: int) -> None:
        self.number = first  # of the next batch
        self.oversample = float(state.options.generate.oversample)
        self._state = state
        self._options = state.options
        self._learning = learning
        self._first = first
        self._scheduler = TaskScheduler()
        self._histories = SentHistories()
        self._unwritten: deque[WriteOrder] = deque()
        self._losses: Counter[tuple[str, str]] = Counter()  # by task: generators that died in a row
        self._write_s = 0.0  # how long a batch takes to write

    def plan(self, jobs: Iterable[TuningJob], seconds_left: float | None) -> None:
        """Plan the next batch, if it is time.

        `seconds_left` is for how long the slots have work; None: unknown.
        """
        state, options = self._state, self._options.pipeline
        if self._is_ahead() or not state.workers_of(WorkerKind.GENERATOR):
            return
        if not self._is_due(seconds_left):
            return
        size = options.batch * max(1, len(state.workers_of(WorkerKind.MEASURER)))
        running = [job for job in jobs if job.state is JobState.RUNNING]
        is_offered = functools.cache(state.is_offered)
        allocations = self._scheduler.allocate(running, size, options.per_task, is_offered)
        if not allocations:
            return
        batch = Batch(self.number, allocations, len(allocations), planned_at=state.pool.now())
        rows = tuple((a.job.id, a.task.task.id, a.count) for a in allocations)
        plan = BatchPlan(batch.number, rows, state.clock.now())
        if not state.writer.put_batch(batch.number, wire.pack(plan)):
            return
        state.batches.append(batch)
        self.number += 1
        for allocation in allocations:
            allocation.task.writing += allocation.count
            allocation.task.newest_batch = batch.number
            task = allocation.task.task
            order = WriteOrder(batch.number, task, allocation.count, self.oversample)
            self._unwritten.append(order)
        version = self._learning.version
        state.emit("planned", batch=batch.number, tasks=len(allocations), version=version)

    def _is_ahead(self) -> bool:
        """Whether a batch is being written, or a whole one waits for the slots."""
        return any(not b.is_written or not b.begun for b in self._state.batches)

    def _is_due(self, seconds_left: float | None) -> bool:
        learning = self._learning
        if self._options.pipeline.strict and self._options.train.enabled:
            # Step i writes batch i+1 with the version that has learnt from the batches before i.
            return learning.is_idle and learning.learnt >= self.number - 2
        if learning.is_idle or seconds_left is None:
            return True  # no newer checkpoint will be ready in time
        lead_s = _LEAD * max(self._write_s, _MIN_WRITE_S)
        if seconds_left < lead_s + learning.publish_s:
            learning.stop_early()
        return seconds_left < lead_s

    def send_orders(self) -> None:
        """Give orders to idle generators: newer checkpoints before a batch, then what to write."""
        state = self._state
        between = not state.has_order(WriteOrder) and not self._has_begun_batch()
        for worker in state.idle(WorkerKind.GENERATOR):
            if between and worker.version != self._learning.version:
                state.send(worker.name, SwapOrder(self._learning.version))
            elif (order := self._next()) is not None:
                task = state.task(order.task)
                avoid, count = self._histories.news(worker.name, task)
                order = replace(
                    order,
                    records=task.fastest,
                    avoid=avoid,
                    known=count,
                    earlier=task.earlier if task.trials < len(task.earlier) else (),
                )
                state.send(worker.name, order)
                state.batch(order.batch).versions.add(worker.version)

    def _has_begun_batch(self) -> bool:
        unwritten = self._unwritten
        return bool(unwritten) and bool(self._state.batch(unwritten[0].batch).versions)

    def _next(self) -> WriteOrder | None:
        """The next order that a running job wants."""
        while self._unwritten:
            order = self._unwritten.popleft()
            if self._is_wanted(order):
                return order
            self._finish(order, Written((), (), 0))
        return None

    def _is_wanted(self, order: WriteOrder) -> bool:
        allocations = self._state.batch(order.batch).allocations_of(order.task)
        return not all(a.job.state.is_finished for a in allocations)

    def forget(self, tasks: Collection[tuple[str, str]]) -> None:
        """The tasks with these keys are no longer in memory."""
        self._histories.forget_tasks(tasks)

    def on_left(self, worker: str) -> None:
        """Its successor knows none of the candidates written before."""
        self._histories.forget(worker)

    def on_event(self, event: OrderDone | OrderLost | OrderFailed) -> None:
        """A generator answered an order, failed, or died."""
        order = event.order
        if isinstance(order, SwapOrder):
            if isinstance(event, OrderDone) and isinstance(event.answer, int):
                self._state.set_version(event.worker, event.answer)
                self._state.emit("swapped", worker=event.worker, version=event.answer)
            return  # a swap that failed is tried again before the next batch
        assert isinstance(order, WriteOrder)
        if not isinstance(event, OrderDone):
            self._histories.forget(event.worker)
        if isinstance(event, OrderLost):
            self._losses[order.task.key] += 1
            if self._losses[order.task.key] < _MAX_LOSSES:
                self._unwritten.appendleft(replace(order, records=(), avoid=(), known=0))
                return
            error = f"writing its candidates ended {_MAX_LOSSES} generators"
            self._state.emit("write_failed", task=order.task.name, error=error)
        self._losses.pop(order.task.key, None)
        if isinstance(event, OrderFailed):
            self._state.emit("write_failed", task=order.task.name, error=event.error)
        written = event.answer if isinstance(event, OrderDone) else None
        self._finish(order, written if isinstance(written, Written) else Written((), (), 0))

    def _finish(self, order: WriteOrder, written: Written) -> None:
        state, batch = self._state, self._state.batch(order.batch)
        task = state.task(order.task)
        task.writing -= order.count
        batch.unwritten -= 1
        refused = [r for r in written.refused if not task.knows(r.candidate)]
        created = state.clock.now()
        state.add_records(task, [replace(r, batch=batch.number, created=created) for r in refused])
        proposals = task.new_proposals(written.proposals)[: order.count]
        if self._is_wanted(order):
            task.end_round(len(proposals), len(refused))
            task.wait_for(proposals)
            batch.add(order.task, proposals, self._options.pipeline.chunk)
        if batch.is_written:
            took = state.pool.now() - batch.planned_at
            self._write_s = took if not self._write_s else 0.5 * (self._write_s + took)
            self._adapt(batch)
            version = max(batch.versions, default=0)
            state.emit("written", batch=batch.number, candidates=batch.written, version=version)

    def _adapt(self, batch: Batch) -> None:
        """Write fewer candidates next time if the slots had to wait for these, else more."""
        if self._options.pipeline.strict or batch.number == self._first or not batch.written:
            return
        generate = self._options.generate
        earlier = [b for b in self._state.batches if b is not batch]
        if not any(b.waiting for b in earlier):
            least = min(generate.oversample_min, generate.oversample)
            self.oversample = max(least, _FEWER * self.oversample)
        else:
            most = max(generate.oversample_max, generate.oversample)
            self.oversample = min(most, _MORE * self.oversample)
