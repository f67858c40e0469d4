"""The i+2 pipeline (paper, section 4.2): it measures, trains and generates at the same time.

Step i measures batch i, trains on the records of the batches up to i-1, and writes batch i+1 with
the checkpoint of that training::

    measuring   | batch 0 | batch 1       | batch 2       |
    training    |         | on 0 -> v1    | on 0-1 -> v2  |
    generating  | batch 1 | batch 2 by v1 | batch 3 by v2 |

With ``pipeline.strict`` the table holds exactly. Without it measuring never waits: a batch is
written when the newer checkpoint is ready or when the slots are about to run out of work. The parts
wait for each other as follows:

==========  =========================================  =========================================
part        waits for                                  unblocked by
==========  =========================================  =========================================
Generating  the last batch being begun; a newer        a slot's first order of that batch; a
            checkpoint, or slots that run out of work  published checkpoint; few candidates left
Measuring   candidates with a baseline                 a generator's answer, a slot's baseline
Learning    a completed batch; the registry            the last outcome of a batch; its answer
==========  =========================================  =========================================

The pipeline is a reactor: `Pipeline.step` sends orders, waits for events and handles them. Time
comes from the worker pool, so tests run it under a simulated clock.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from tlmd.data.types import JobState, Record, TargetInfo, Task
from tlmd.pipeline.batches import Batch
from tlmd.pipeline.convergence import Convergence
from tlmd.pipeline.deadlines import Deadlines
from tlmd.pipeline.generating import Generating
from tlmd.pipeline.learning import Learning
from tlmd.pipeline.measuring import Measuring
from tlmd.pipeline.orders import (
    BaselineOrder,
    CompareOrder,
    Event,
    MeasureOrder,
    PublishOrder,
    SlotOrder,
    StartFailed,
    Store,
    TrainOrder,
    WorkerJoined,
    WorkerLeft,
    WorkerPool,
    WriteOrder,
)
from tlmd.pipeline.state import Emit, Known, PipelineOptions, PipelineState
from tlmd.pipeline.task_state import TaskState
from tlmd.pipeline.tuning_jobs import TuningJob
from tlmd.pipeline.unfinished_jobs import UnfinishedJobs

_LOOK_S = 1.0  # between two looks at which hardware has slots
_NO_SLOT = "it waits: no slot has the hardware of its tasks"


class Pipeline:
    """Runs jobs on a worker pool. Use it from one thread only.

    Call `step` again and again. While `paused`, no orders are sent; `drain` ends that for good, and
    what is in flight is finished.
    """

    def __init__(
        self,
        pool: WorkerPool,
        store: Store,
        options: PipelineOptions | None = None,
        emit: Emit | None = None,
        known: Known = lambda _: (),
    ) -> None:
        options = options or PipelineOptions()
        emit = emit or (lambda kind, **facts: None)
        self.state = PipelineState(pool, store, options, emit, known)
        self.jobs: dict[str, TuningJob] = {}
        self._unfinished = UnfinishedJobs()
        self.paused = False
        self.draining = False
        self._looked_at = 0.0
        self._deadlines = Deadlines(self.state)
        self._strict = options.pipeline.strict
        last = store.last_batch()
        first = last[0] + 1 if last else 0  # the numbers of batches go on over all runs of a store
        self.learning = Learning(self.state, first)
        self.generating = Generating(self.state, self.learning, first)
        self.measuring = Measuring(self.state, self.learning, self._on_records, self._fail)

    def add_job(self, job: TuningJob, tasks: Iterable[Task]) -> None:
        """Start a job, or add tasks to one whose tasks are not all known."""
        tasks = list(tasks)
        if job.id not in self.jobs:
            self.jobs[job.id] = job
            self._unfinished.add(job)
            job.begun = self.state.pool.now()
            self.state.clock.set_at_least(job.created)
        for task in tasks:
            task_state = self.state.task(task)
            self.measuring.want_baseline(task_state)
            job.add(task_state, task.weight)
        if not job.state.is_finished:
            self._unfinished.add_tasks(job, {task.key for task in tasks})
        if job.corpus and job.all_tasks_known:
            options = self.state.options.pipeline
            job.convergence = Convergence.of(job, options.window, options.gain)

    def cancel(self, job_id: str, state: JobState = JobState.CANCELLED, reason: str = "") -> None:
        """End a job. Measurements that slots have in flight are still recorded."""
        if not self.jobs[job_id].state.is_finished:
            self._end(self.jobs[job_id], state, reason)

    def forget_finished(self) -> None:
        """Drop jobs that have ended, but for the last one and the last campaign, and their tasks.

        A task that a later job has is read from the store again.
        """
        ended = [job for job in self.jobs.values() if job.state.is_finished]
        shown = {job.id for job in (*ended[-1:], *[j for j in ended if j.corpus][-1:])}
        gone = [job for job in ended if job.id not in shown]
        if not gone:
            return
        for job in gone:
            del self.jobs[job.id]
        used = {task.task.key for job in self.jobs.values() for task in job.tasks}
        used |= {a.task.task.key for batch in self.state.batches for a in batch.allocations}
        unused = {task.task.key for job in gone for task in job.tasks} - used
        for key in unused:
            self.state.tasks.pop(key, None)
        self.generating.forget(unused)

    def drain(self) -> None:
        """Send no more work."""
        if not self.draining:
            self.draining = True
            self.learning.interrupt()

    @property
    def is_drained(self) -> bool:
        """Nothing is being measured."""
        return not self.state.has_order(MeasureOrder, BaselineOrder, CompareOrder)

    @property
    def is_idle(self) -> bool:
        """All jobs are finished."""
        return not self.state.batches and not self._unfinished

    def step(self, seconds: float) -> list[Event]:
        """Send orders, wait at most `seconds` for events, handle them; returns them."""
        self._send_orders()
        events = self.state.pool.wait(seconds)
        for event in events:
            self._handle(event)
        self.learning.add_records(self.state.writer.flush())
        self._deadlines.check()
        self._look_around()
        if not self.state.writer.is_flushed:
            return events  # nothing is done before it is on disk
        self._finish_batches()
        self._finish_jobs()
        return events

    def _send_orders(self) -> None:
        if self.paused or (self.is_idle and not self.draining):
            self.measuring.reset_rate()
        if not (self.paused or self.draining) and self.state.writer.is_flushed:
            self.generating.plan(self._unfinished, self.measuring.seconds_left)
            self.generating.send_orders()
            self.measuring.send_orders()
        if self.state.options.train.enabled and not self.paused:
            # After the slots: when a batch begins, the one before it can be learnt from. While
            # draining, what is trained is still published.
            self.learning.send_orders(-1 if self.draining else self._complete)

    @property
    def _complete(self) -> int:
        """The newest batch to learn from: it and all batches before it are measured."""
        complete = next((b.number for b in self.state.batches), self.generating.number) - 1
        if self._strict:  # step i learns from batch i-1 when batch i has begun
            complete = min(complete, self.measuring.step - 1)
        return complete

    def _handle(self, event: Event) -> None:
        state = self.state
        if isinstance(event, WorkerJoined):
            worker = event.worker
            state.join(worker)
            self.learning.on_joined(worker)
            state.emit("joined", worker=worker.name, version=worker.version, pid=worker.pid)
        elif isinstance(event, WorkerLeft):
            state.leave(event.worker)
            self.generating.on_left(event.worker)
            state.emit("left", worker=event.worker)
        elif isinstance(event, StartFailed):
            self.learning.on_start_failed(event)
            again = round(event.again_s)
            state.emit("start_failed", worker=event.worker, error=event.error, again_s=again)
        elif state.finish_order(event.worker, event.order):
            if isinstance(event.order, WriteOrder | SlotOrder):
                self._unfinished.touch(event.order.task.key)
            if isinstance(event.order, SlotOrder):
                self.measuring.on_event(event)
            elif isinstance(event.order, TrainOrder | PublishOrder):
                self.learning.on_event(event)
            else:
                self.generating.on_event(event)

    def _on_records(self, batch: Batch, task: TaskState, records: list[Record]) -> None:
        for allocation in batch.allocations_of(task.task):
            job = allocation.job
            job.measured_now += len(records)
            job.current = task.task.name
            if job.convergence is not None:
                job.convergence.observe(job.group(task.task.computation), len(records))

    def _fail(self, error: str, target: TargetInfo) -> None:
        """End the jobs that need a slot of this target."""
        for job in self._unfinished:
            if target.fingerprint in {one.fingerprint for one in job.targets}:
                self._end(job, JobState.FAILED, error)

    def _look_around(self) -> None:
        """Look at all unfinished jobs, once a second: for their slots, and for their time budgets.

        Tasks without a slot of their hardware wait, and nothing waits for them. Else a batch with
        candidates of hardware that is gone would never be complete.
        """
        now, is_offered = self.state.pool.now(), functools.cache(self.state.is_offered)
        if now < self._looked_at + _LOOK_S:
            return
        self._looked_at = now
        self._unfinished.begin_round()
        for batch in self.state.batches:
            for order in [o for o in batch.queue if not is_offered(o.task.target)]:
                self.state.drop_order(batch, order)
        for job in self._unfinished:
            if job.state is JobState.RUNNING and job.targets:
                reason = "" if any(map(is_offered, job.targets)) else _NO_SLOT
                if self.state.writer.full:
                    reason = f"it waits: {self.state.writer.full}"
                if reason != job.reason:
                    job.reason = reason
                    self.state.emit("job", job=job.id, state=str(job.state), reason=reason)

    def _finish_batches(self) -> None:
        for batch in [b for b in self.state.batches if b.is_complete]:
            if self._strict and batch is not self.state.batches[0]:
                continue
            self.state.batches.remove(batch)
            self.measuring.step = max(self.measuring.step, batch.number)
            for allocation in batch.allocations:
                allocation.task.best_after_batch.append(allocation.task.best_seconds)
            self.state.emit("measured", batch=batch.number, candidates=batch.measured)

    def _finish_jobs(self) -> None:
        now = self.state.pool.now()
        for job in self._unfinished.due():
            if job.state is not JobState.RUNNING or not job.all_tasks_known:
                continue
            if not job.corpus:
                for group in job.groups:
                    if job.is_measured(group) and not job.is_finished_with(group):
                        self.measuring.comparisons.want(group)
            if job.update(now, self.paused):
                self._remove_unwanted(job)
                if not self._is_in_flight(job):
                    self._end(job, JobState.DONE)
            elif job.until_converged and job.has_converged:
                self._end(job, JobState.DONE, "converged")

    def _end(self, job: TuningJob, state: JobState, reason: str = "") -> None:
        """Finish a job."""
        job.state, job.reason, job.ended = state, reason, self.state.pool.now()
        self.state.emit("job", job=job.id, state=str(state), reason=reason)
        self._remove_unwanted(job)
        self._unfinished.remove(job)

    def _is_in_flight(self, job: TuningJob) -> bool:
        """Whether slots hold candidates of its batches. Their records belong to its result."""
        return any(
            batch.in_flight and any(a.job is job for a in batch.allocations)
            for batch in self.state.batches
        )

    def _remove_unwanted(self, ending: TuningJob) -> None:
        """Remove from the queues what no job wants but one that ends."""
        for batch in self.state.batches:
            wanted = {
                a.task.task.id
                for a in batch.allocations
                if a.job is not ending and not a.job.state.is_finished
            }
            for order in [o for o in batch.queue if o.task.id not in wanted]:
                self.state.drop_order(batch, order)
