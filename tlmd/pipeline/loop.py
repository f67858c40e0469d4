"""The i+2 pipeline (paper, section 4.2): measuring, training and generating at once.

Step i measures batch i, trains on the records up to batch i-1, and writes batch i+1 with the
checkpoint that came of it::

    measuring   | batch 0 | batch 1       | batch 2       |
    training    |         | on 0 -> v1    | on 0-1 -> v2  |
    generating  | batch 1 | batch 2 by v1 | batch 3 by v2 |

With `Rules.strict` that table holds literally. Otherwise measuring never waits: batches follow each
other without a gap, and a batch is written when the newer checkpoint is there or when the slots
would run dry, whatever comes first. The pipeline is a reactor: `step` hands out orders, waits for
events and takes them in. Time comes from the crew, so tests run it under a simulated clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from tlmd.pipeline.batches import Batch
from tlmd.pipeline.board import Board, Rules, Tell
from tlmd.pipeline.convergence import Convergence
from tlmd.pipeline.generating import Generating
from tlmd.pipeline.jobs import Job, JobState, TaskState
from tlmd.pipeline.learning import Learning
from tlmd.pipeline.measuring import Measuring
from tlmd.pipeline.orders import (
    BaselineOrder,
    Crew,
    Event,
    Joined,
    Left,
    MeasureOrder,
    PublishOrder,
    RaceOrder,
    SlotOrder,
    Store,
    TrainOrder,
)
from tlmd.types import Record, Task


class Pipeline:
    """Runs jobs on a crew; to be used from one thread only.

    Call `step` again and again. Jobs are added with `add_job`; while `paused` no work is handed
    out, and `drain` ends that for good: what is in flight is finished.
    """

    def __init__(
        self, crew: Crew, store: Store, rules: Rules | None = None, tell: Tell | None = None
    ) -> None:
        rules = rules or Rules()
        self.board = Board(crew, store, rules, tell or (lambda kind, **facts: None))
        self.jobs: dict[str, Job] = {}
        self.paused = False
        self.draining = False
        self.convergence = Convergence(rules.window, rules.gain)
        last = store.last_batch()
        first = last[0] + 1 if last else 0  # batches are numbered on over all runs of a store
        self.learning = Learning(self.board, first)
        self.generating = Generating(self.board, self.learning, first)
        self.measuring = Measuring(self.board, self.learning, self._observe, self._fail)

    def add_job(self, job: Job, tasks: Iterable[Task]) -> None:
        """Start a job, or give one that is not whole yet further tasks."""
        if job.id not in self.jobs:
            self.jobs[job.id] = job
            job.begun = self.board.crew.now()
        for task in tasks:
            state = self.board.state(task)
            self.measuring.want_baseline(state)
            new = job.add(state, task.weight)
            if new and job.corpus and state.records:  # measured by an earlier run of the campaign
                self.convergence.observe(job, state, len(state.own))

    def cancel(self, job_id: str, state: JobState = JobState.CANCELLED, reason: str = "") -> None:
        """End a job; what is with the slots is still recorded."""
        if not self.jobs[job_id].state.over:
            self._end(self.jobs[job_id], state, reason)

    def drain(self) -> None:
        """Hand out nothing more."""
        if not self.draining:
            self.draining = True
            self.learning.interrupt()

    @property
    def is_drained(self) -> bool:
        """Nothing is being measured."""
        return not self.board.doing(MeasureOrder, BaselineOrder, RaceOrder)

    @property
    def is_idle(self) -> bool:
        """No job has anything left to do."""
        return not self.board.batches and all(job.state.over for job in self.jobs.values())

    def step(self, seconds: float) -> list[Event]:
        """Hand out orders, wait at most `seconds` for events, take them in; returns them."""
        self._hand_out()
        events = self.board.crew.wait(seconds)
        for event in events:
            self._take_in(event)
        self.learning.observe(self.board.commit())
        self._settle()
        return events

    def _hand_out(self) -> None:
        if self.paused or (self.is_idle and not self.draining):
            self.measuring.rest()
        if not (self.paused or self.draining):
            self.generating.plan(self.jobs.values(), self.measuring.seconds_left)
            self.generating.write()
            self.measuring.hand_out()
        if self.board.rules.train and not self.paused:
            # After the slots: a batch that begins frees the one before it to be learnt from, even
            # if its first answer is its last. While draining, what is trained is still published.
            complete = -1 if self.draining else self._complete
            self.learning.hand_out(complete)

    @property
    def _complete(self) -> int:
        """The newest batch to learn from: it is measured, as are all before it."""
        complete = next((b.number for b in self.board.batches), self.generating.number) - 1
        if self.board.rules.strict:  # step i learns from batch i-1 when batch i has begun
            complete = min(complete, self.measuring.step - 1)
        return complete

    def _take_in(self, event: Event) -> None:
        board = self.board
        if isinstance(event, Joined):
            worker = event.worker
            board.join(worker)
            self.learning.joined(worker)
            board.tell("joined", worker=worker.name, version=worker.version, pid=worker.pid)
        elif isinstance(event, Left):
            board.leave(event.worker)
            board.tell("left", worker=event.worker)
        elif board.landed(event.worker, event.order):
            if isinstance(event.order, SlotOrder):
                self.measuring.answer(event)
            elif isinstance(event.order, TrainOrder | PublishOrder):
                self.learning.answer(event)
            else:
                self.generating.answer(event)

    def _observe(self, batch: Batch, state: TaskState, records: list[Record]) -> None:
        for turn in batch.turns:
            if turn.state is state:
                turn.job.measured_now += len(records)
                turn.job.current = state.task.name
                if turn.job.corpus:
                    self.convergence.observe(turn.job, state, len(records))

    def _fail(self, error: str) -> None:
        for job in self.jobs.values():
            if not job.state.over:
                self._end(job, JobState.FAILED, error)

    def _settle(self) -> None:
        """Close batches that are complete, and jobs that have what they asked for."""
        for batch in [b for b in self.board.batches if b.is_complete]:
            if self.board.rules.strict and batch is not self.board.batches[0]:
                continue
            self.board.batches.remove(batch)
            self.measuring.step = max(self.measuring.step, batch.number)
            for turn in batch.turns:
                turn.state.rounds.append(turn.state.best_seconds)
            self.board.tell("measured", batch=batch.number, candidates=batch.measured)
        now = self.board.crew.now()
        for job in self.jobs.values():
            if job.state is not JobState.RUNNING or not job.whole:
                continue
            if not job.corpus:
                for task in job.tasks:
                    if job.measured(task) and not job.satisfied(task):
                        self.measuring.want_race(task)
            if job.settle(now):
                self._end(job, JobState.DONE)
            elif job.corpus and job.until_converged and self.convergence.verdict(job).converged:
                self._end(job, JobState.DONE, "converged")

    def _end(self, job: Job, state: JobState, reason: str = "") -> None:
        job.state, job.reason, job.ended = state, reason, self.board.crew.now()
        self.board.tell("job", job=job.id, state=str(state), reason=reason)
        for batch in self.board.batches:
            wanted = {t.state.task.id for t in batch.turns if not t.job.state.over}
            for order in [o for o in batch.queue if o.task.id not in wanted]:
                batch.queue.remove(order)
                for proposal in order.proposals:
                    self.board.state(order.task).pending.pop(proposal.candidate.id, None)
