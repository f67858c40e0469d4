"""The measuring part of the pipeline: what each slot gets next, and what came of it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from tlmd.pipeline.batches import Batch, Retries, crashed
from tlmd.pipeline.board import Board
from tlmd.pipeline.jobs import TaskState
from tlmd.pipeline.learning import Learning
from tlmd.pipeline.orders import (
    BaselineOrder,
    Done,
    Failed,
    Kind,
    Lost,
    MeasureOrder,
    RaceOrder,
    SlotOrder,
    Worker,
)
from tlmd.ranking import retimed
from tlmd.types import Baseline, Outcome, Proposal, Record, Task

_TROUBLE = 3  # errors of the slots in a row, then nothing can be measured here
_PACE = 64  # answers that the rate is taken from


class Measuring:
    """Keeps every slot busy, the unscheduled program of a task before its candidates.

    ``step`` is the newest batch that has begun, ``lag`` that of the last candidates.
    `on_records(batch, state, records)` is told of every answer, `on_trouble(error)` when the slots
    fail.
    """

    def __init__(
        self,
        board: Board,
        learning: Learning,
        on_records: Callable[[Batch, TaskState, list[Record]], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self.step = -1
        self.lag = 0
        self._board = board
        self._learning = learning
        self._on_records = on_records
        self._on_trouble = on_trouble
        self._baselines: dict[tuple[str, str], BaselineOrder] = {}  # that no slot has yet
        self._ordered: set[tuple[str, str]] = set()
        self._races: deque[TaskState] = deque()  # whose finalists no slot has yet
        self._retries = Retries()
        self._trouble = 0
        self._pace: deque[tuple[float, int]] = deque(maxlen=_PACE)

    @property
    def rate(self) -> float:
        """Measured candidates per second, lately; 0 where nothing is known."""
        if len(self._pace) < 2:
            return 0.0
        seconds = self._pace[-1][0] - self._pace[0][0]
        return sum(n for _, n in list(self._pace)[1:]) / max(seconds, 1e-3)

    @property
    def seconds_left(self) -> float | None:
        """For how long the slots have work, looked at before the next answer; None: not known."""
        left = sum(b.waiting + b.flying for b in self._board.batches) - self._board.rules.chunk
        return max(left, 0) / self.rate if self.rate else None

    def rest(self) -> None:
        """Nothing is handed out for a while, which says nothing of the pace."""
        self._pace.clear()

    def want_baseline(self, state: TaskState) -> None:
        """Have the unscheduled program timed, once."""
        key = state.task.key
        if state.baseline is None and key not in self._ordered:
            self._ordered.add(key)
            self._baselines[key] = BaselineOrder(state.task)

    def want_race(self, state: TaskState) -> None:
        """Have the finalists of a task timed against each other."""
        if state not in self._races and not state.racing:
            self._races.append(state)

    def hand_out(self) -> None:
        """Give every slot as much as it should have."""
        for worker in self._board.of(Kind.MEASURER):
            while self._has_room(worker):
                order = self._next(worker)
                if order is None:
                    break
                self._board.send(worker.name, order)

    def _has_room(self, worker: Worker) -> bool:
        orders = self._board.busy.get(worker.name, ())
        alone = any(isinstance(o, MeasureOrder) and self._retries.suspects(o) for o in orders)
        return not alone and len(orders) < self._board.rules.depth

    def _next(self, worker: Worker) -> SlotOrder | None:
        """Finalists, the next candidates, or the baseline they wait for; others in idle moments."""
        for state in self._races:
            if worker.accepts(state.task.target):
                self._races.remove(state)
                return RaceOrder(state.task, state.begin_race())
        orders = self._board.busy.get(worker.name, ())
        if not any(isinstance(o, BaselineOrder) for o in orders):
            # One at a time beside candidates, so that those of the next batch do not wait for it.
            for batch in self._board.batches:
                if (baseline := self._baseline_of(batch, worker)) is not None:
                    return baseline
        for batch in self._board.batches:
            order = batch.take(lambda order: self._suits(worker, order))
            if order is not None:
                self._begin(batch)
                best = self._board.state(order.task).best
                return replace(order, incumbent_s=best.outcome.seconds if best else None)
            if (baseline := self._baseline_of(batch, worker)) is not None:
                return baseline
            if self._board.rules.strict and not batch.is_complete:
                return None  # a step ends when all of its batch is measured
        for key, baseline in self._baselines.items():
            if worker.accepts(baseline.task.target):
                return self._baselines.pop(key)
        return None

    def _baseline_of(self, batch: Batch, worker: Worker) -> BaselineOrder | None:
        """A baseline that candidates of the batch wait for."""
        for turn in batch.turns:
            baseline = self._baselines.get(turn.state.task.key)
            if baseline is not None and worker.accepts(baseline.task.target):
                return self._baselines.pop(baseline.task.key)
        return None

    def _suits(self, worker: Worker, order: MeasureOrder) -> bool:
        if self._board.state(order.task).baseline is None:
            return False
        alone = self._retries.suspects(order) and bool(self._board.busy.get(worker.name))
        return worker.accepts(order.task.target) and not alone

    def _begin(self, batch: Batch) -> None:
        if not batch.begun:
            batch.begun = True
            self.step = max(self.step, batch.number)
            versions = sorted(batch.versions)
            self._board.tell("measuring", batch=batch.number, versions=versions)

    def answer(self, event: Done | Lost | Failed) -> None:
        """A slot answered, or did not."""
        if isinstance(event, Failed):
            self._complain(event)
        elif isinstance(event, Done):
            self._trouble = 0
        if isinstance(event.order, BaselineOrder):
            self._timed(event, event.order)
        elif isinstance(event.order, RaceOrder):
            self._raced(event, event.order)
        elif isinstance(event.order, MeasureOrder):
            self._measured(event, event.order)

    def _timed(self, event: Done | Lost | Failed, order: BaselineOrder) -> None:
        if not isinstance(event, Done) or not isinstance(event.answer, Baseline):
            self._baselines[order.task.key] = order
            return
        self._board.state(order.task).baseline = event.answer
        self._ordered.discard(order.task.key)
        if math.isfinite(event.answer.seconds):  # a failure may pass; the next run tries again
            self._board.store.put_baseline(event.answer)

    def _raced(self, event: Done | Lost | Failed, order: RaceOrder) -> None:
        state = self._board.state(order.task)
        state.racing = False
        if isinstance(event, Done) and isinstance(event.answer, tuple):
            pairs = zip(order.records, event.answer, strict=False)
            now, step = time.time(), max(self.step, 0)
            # A batch of its own keeps the earlier record beside it in the store.
            raced = [retimed(r, outcome, now, max(step, r.batch)) for r, outcome in pairs]
            self._board.refresh(state, raced)

    def _measured(self, event: Done | Lost | Failed, order: MeasureOrder) -> None:
        batch = self._board.batch(order.batch)
        batch.land(order)
        if isinstance(event, Done) and isinstance(event.answer, tuple):
            self._retries.forget(order)
            self._record(batch, order.task, list(zip(order.proposals, event.answer, strict=True)))
            return
        given_up = self._retries.again(batch, order)
        outcome = crashed("its slot was lost three times")
        self._record(batch, order.task, [(p, outcome) for p in given_up])

    def _record(
        self, batch: Batch, task: Task, outcomes: Sequence[tuple[Proposal, Outcome]]
    ) -> None:
        state = self._board.state(task)
        records = [
            Record(
                p.candidate,
                outcome,
                version=p.version,
                batch=batch.number,
                fingerprint=task.target.fingerprint,
                module_hash=p.module_hash,
                created=time.time(),
                lag=max(0, self._learning.version - p.ranked),
                features=p.features,
            )
            for p, outcome in outcomes
        ]
        batch.measured += len(records)
        self.lag = max((r.lag for r in records), default=self.lag)
        self._board.keep(state, records)
        self._pace.append((self._board.crew.now(), len(records)))
        self._on_records(batch, state, records)

    def _complain(self, event: Failed) -> None:
        """An error of a slot, not of a candidate: nothing can be measured while it stays."""
        self._board.tell("slot_failed", worker=event.worker, error=event.error)
        self._trouble += 1
        if self._trouble >= _TROUBLE:
            self._trouble = 0
            self._on_trouble(event.error)
