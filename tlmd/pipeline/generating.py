"""The generating part of the pipeline: when a batch begins, who writes it, with which version."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from tlmd import wire
from tlmd.pipeline.allocation import allocate
from tlmd.pipeline.batches import Batch, BatchPlan
from tlmd.pipeline.board import Board
from tlmd.pipeline.jobs import Job, JobState
from tlmd.pipeline.learning import Learning
from tlmd.pipeline.orders import Done, Failed, Kind, Lost, SwapOrder, WriteOrder, Written

_HASTE = 2.0  # a batch is begun when its slots run dry within this many writing times
_SHORTEST_S = 0.2
_INCUMBENTS = 16  # sent to a generator to start its local search from
_LESS, _MORE = 0.7, 1.1  # how fast the share of candidates that are measured changes


class Generating:
    """Begins batches and has them written.

    A newer checkpoint is swapped in between batches only, so that one version writes all of a
    batch; which version a generator really uses is what it says itself. ``over`` candidates are
    written for each one that is kept: fewer when the slots ran dry meanwhile, more when they did
    not.
    """

    def __init__(self, board: Board, learning: Learning, first: int) -> None:
        self.number = first  # of the next batch
        self._board = board
        self._learning = learning
        self._first = first
        self._unwritten: deque[WriteOrder] = deque()
        self._write_s = 0.0
        self.over = board.rules.over

    def plan(self, jobs: Iterable[Job], seconds_left: float | None) -> None:
        """Begin the next batch when its time has come.

        `seconds_left` is for how long the slots have work; None is not known.
        """
        board = self._board
        if self._behind() or not board.of(Kind.GENERATOR) or not self._due(seconds_left):
            return
        size = board.rules.batch * max(1, len(board.of(Kind.MEASURER)))
        running = [job for job in jobs if job.state is JobState.RUNNING]
        turns = allocate(running, size, board.rules.turn)
        if not turns:
            return
        batch = Batch(self.number, turns, len(turns), planned_at=board.crew.now())
        plan = BatchPlan(
            batch.number, tuple((t.job.id, t.state.task.id, t.count) for t in turns), time.time()
        )
        board.store.put_batch(batch.number, wire.pack(plan))
        board.batches.append(batch)
        self.number += 1
        for turn in turns:
            turn.state.writing += turn.count
            order = WriteOrder(batch.number, turn.state.task, turn.count, self.over)
            self._unwritten.append(order)
        board.tell("planned", batch=batch.number, turns=len(turns), version=self._learning.version)

    def _behind(self) -> bool:
        """A batch is being written, or a whole one waits for the slots: queues stay short."""
        return any(not b.is_written or not b.begun for b in self._board.batches)

    def _due(self, seconds_left: float | None) -> bool:
        learning = self._learning
        if self._board.rules.strict and self._board.rules.train:
            # Step i writes batch i+1 with what was learnt from the batches before i.
            return learning.is_idle and learning.learnt >= self.number - 2
        if learning.is_idle or seconds_left is None:
            return True  # nothing newer will come in time
        haste = _HASTE * max(self._write_s, _SHORTEST_S)
        if seconds_left < haste + learning.wrap_up_s:
            learning.boundary()
        return seconds_left < haste

    def write(self) -> None:
        """Hand turns to idle generators, newer checkpoints before a batch."""
        board = self._board
        between = not board.doing(WriteOrder) and not self._halfway()
        for worker in board.idle(Kind.GENERATOR):
            if between and worker.version != self._learning.version:
                board.send(worker.name, SwapOrder(self._learning.version))
            elif (order := self._next()) is not None:
                state = board.state(order.task)
                best = state.fastest(_INCUMBENTS)  # not all that was measured: that grows
                board.send(worker.name, replace(order, records=best, avoid=state.tried))
                board.batch(order.batch).versions.add(worker.version)

    def _halfway(self) -> bool:
        return bool(self._unwritten) and bool(self._board.batch(self._unwritten[0].batch).versions)

    def _next(self) -> WriteOrder | None:
        """The next turn that somebody still wants."""
        while self._unwritten:
            order = self._unwritten.popleft()
            if self._wanted(order):
                return order
            self._finish(order, Written((), (), 0))
        return None

    def _wanted(self, order: WriteOrder) -> bool:
        state = self._board.state(order.task)
        turns = self._board.batch(order.batch).turns
        return any(t.state is state and not t.job.state.over for t in turns)

    def answer(self, event: Done | Lost | Failed) -> None:
        """A generator answered, or did not."""
        order = event.order
        if isinstance(order, SwapOrder):
            if isinstance(event, Done) and isinstance(event.answer, int):
                self._board.update(event.worker, event.answer)
                self._board.tell("swapped", worker=event.worker, version=event.answer)
            return  # otherwise it is tried again before the next batch
        assert isinstance(order, WriteOrder)
        if isinstance(event, Lost):
            self._unwritten.appendleft(replace(order, records=(), avoid=()))
            return
        if isinstance(event, Failed):
            self._board.tell("write_failed", task=order.task.name, error=event.error)
        written = event.answer if isinstance(event, Done) else None
        self._finish(order, written if isinstance(written, Written) else Written((), (), 0))

    def _finish(self, order: WriteOrder, written: Written) -> None:
        board, batch = self._board, self._board.batch(order.batch)
        state = board.state(order.task)
        state.writing -= order.count
        batch.unwritten -= 1
        known = {r.candidate.id for r in state.records}
        refused = [r for r in written.refused if r.candidate.id not in known]
        board.keep(state, [replace(r, batch=batch.number) for r in refused])
        proposals = state.fresh(written.proposals)[: order.count]
        if self._wanted(order):
            state.end_turn(len(proposals), len(refused))
            state.pending |= {p.candidate.id: p.module_hash for p in proposals}
            batch.put(order.task, proposals, board.rules.chunk)
        if batch.is_written:
            took = board.crew.now() - batch.planned_at
            self._write_s = took if not self._write_s else 0.5 * (self._write_s + took)
            self._adapt(batch)
            version = max(batch.versions, default=0)
            board.tell("written", batch=batch.number, candidates=batch.written, version=version)

    def _adapt(self, batch: Batch) -> None:
        rules = self._board.rules
        earlier = [b for b in self._board.batches if b is not batch]
        if rules.strict or batch.number == self._first or not batch.written:
            return
        if not any(b.waiting for b in earlier):
            self.over = max(min(rules.least, rules.over), _LESS * self.over)
        else:
            self.over = min(max(rules.most, rules.over), _MORE * self.over)
