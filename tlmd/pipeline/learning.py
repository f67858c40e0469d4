"""The training part of the pipeline: train, then publish, beside the measuring."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tlmd.data.types import Published, Record, Task
from tlmd.pipeline.backlog import TrainingBacklog
from tlmd.pipeline.orders import (
    OrderDone,
    OrderFailed,
    OrderLost,
    PublishOrder,
    StartFailed,
    Trained,
    TrainOrder,
    Worker,
    WorkerKind,
)
from tlmd.pipeline.state import PipelineState

_MAX_LOSSES = 3  # trainers that die in a row; then the next one waits for another batch


@dataclass
class TrainingRound:
    """A checkpoint that is being trained or published."""

    version: int
    upto: int
    """The newest batch that it learns from."""
    begun: float
    interrupted: float = 0.0
    """When the trainer was asked to stop; 0: it was not."""
    trained: bool = False
    """The trainer has answered; the registry has to publish."""


class Learning:
    """Has the trainer learn from every completed batch, and the registry publish the checkpoint."""

    def __init__(self, state: PipelineState, first: int) -> None:
        self.version = 0  # of the checkpoint in force
        self.learnt = first - 1  # the newest batch a finished round has learnt from
        self.last: Trained | None = None
        self.trainer_error = ""  # why there is no trainer
        self.publish_s = 1.0  # from interrupting a training to its checkpoint being in force
        self._state = state
        self._next_version = 1
        self._round: TrainingRound | None = None
        self._backlog = TrainingBacklog(state.store, state.options.train.window)
        self._known_tasks: set[tuple[str, str]] = set()  # by the trainer
        self._fresh = True  # the trainer knows nothing
        self._losses = 0  # trainers that died in a row

    @property
    def is_idle(self) -> bool:
        """No checkpoint is being trained or published."""
        return self._round is None

    def add_records(self, records: list[Record]) -> None:
        """These records were committed."""
        self._backlog.add(records)

    def on_joined(self, worker: Worker) -> None:
        """A trainer or a registry is ready; it may be a new one."""
        if worker.kind is WorkerKind.REGISTRY:
            self.version = worker.version
            self._next_version = max(self._next_version, worker.next_version)
        elif worker.kind is WorkerKind.TRAINER:
            self.trainer_error = ""
            self._start_anew()

    def on_start_failed(self, event: StartFailed) -> None:
        """Where it is the trainer, measuring goes on without it."""
        if event.kind is WorkerKind.TRAINER:
            self.trainer_error = event.error

    def _start_anew(self) -> None:
        """The trainer knows nothing."""
        self._fresh = True
        self._backlog.restart()

    def use(self, version: int) -> None:
        """The user has promoted a version or rolled back to it."""
        self.version = version

    def send_orders(self, complete: int) -> None:
        """Train if batches up to `complete` are new to the trainer; publish what was trained."""
        if self._round is None:
            idle = self._state.idle(WorkerKind.TRAINER)
            if idle and complete > self.learnt and self._backlog.read():
                self._train(idle[0].name, complete)
        elif self._round.trained and not self._state.has_order(PublishOrder):
            for registry in self._state.idle(WorkerKind.REGISTRY):
                self._state.send(registry.name, PublishOrder(self._round.version))

    def _train(self, trainer: str, upto: int) -> None:
        if self._fresh:
            self._known_tasks.clear()
        records, packed, keys = self._backlog.take(upto)
        order = TrainOrder(
            self._next_version,
            upto,
            self._new_tasks(keys),
            tuple(records),
            self._fresh,
            self.version,
            tuple(packed),
        )
        self._fresh = False
        self._round = TrainingRound(self._next_version, upto, self._state.pool.now())
        self._next_version += 1
        count = len(records) + len(packed)
        self._state.emit("training", version=order.version, upto=upto, records=count)
        self._state.send(trainer, order)

    def _new_tasks(self, keys: set[tuple[str, str]]) -> tuple[Task, ...]:
        """The tasks that the trainer does not have."""
        wanted = keys - self._known_tasks
        self._known_tasks |= wanted
        if not self._state.tasks.keys() >= wanted:
            tasks = {t.key: t for t in self._state.store.tasks()}
            return tuple(tasks[key] for key in sorted(wanted) if key in tasks)
        return tuple(self._state.tasks[key].task for key in sorted(wanted))

    def stop_early(self) -> None:
        """The next batch needs a checkpoint: stop the training, if it had its least time."""
        if self._round is None or self._round.trained or self._round.interrupted:
            return
        if self._state.pool.now() - self._round.begun >= self._state.options.train.seconds:
            self._interrupt(at_once=False)

    def interrupt(self) -> None:
        """Have the trainer answer soon with what it has learnt."""
        self._interrupt(at_once=True)

    def _interrupt(self, at_once: bool) -> None:
        if self._round is not None and not self._round.trained:
            self._round.interrupted = self._state.pool.now()
            self._state.pool.interrupt_training(at_once)

    def on_event(self, event: OrderDone | OrderLost | OrderFailed) -> None:
        """The trainer or the registry answered an order, failed, or died."""
        current = self._round
        if current is None or getattr(event.order, "version", None) != current.version:
            return
        if isinstance(event.order, TrainOrder):
            self._on_trained(event, current)
        elif isinstance(event, OrderDone) and isinstance(event.answer, Published):
            self._on_published(event.answer, current)
        elif isinstance(event, OrderFailed):
            self._end(current)
            self._state.emit("publish_failed", version=current.version, error=event.error)
        # A registry that died is replaced, and its successor gets the order again.

    def _on_trained(
        self, event: OrderDone | OrderLost | OrderFailed, current: TrainingRound
    ) -> None:
        if isinstance(event, OrderDone) and isinstance(event.answer, Trained):
            current.trained = True
            self._losses = 0
            self.last = event.answer
            self._state.emit(
                "trained",
                version=current.version,
                upto=current.upto,
                steps=event.answer.steps,
                loss=event.answer.loss if math.isfinite(event.answer.loss) else None,
            )
        elif isinstance(event, OrderLost):
            self._start_anew()
            self._losses += 1
            self._state.emit("training_lost", version=current.version)
            if self._losses >= _MAX_LOSSES:
                self._losses = 0
                self._end(current)  # the measuring goes on; more records may train
            else:
                self._round = None  # this batch is learnt from once more
        else:
            self._end(current)
            error = event.error if isinstance(event, OrderFailed) else ""
            self._state.emit("training_failed", version=current.version, error=error)

    def _on_published(self, answer: Published, current: TrainingRound) -> None:
        if current.interrupted:
            took = self._state.pool.now() - current.interrupted
            self.publish_s = 0.5 * (self.publish_s + took)
        self._end(current)
        if answer.accepted:
            self.version = answer.version
            self._state.emit("published", version=answer.version, upto=current.upto)
        else:
            self._state.emit("refused", version=answer.version, reason=answer.reason)

    def _end(self, current: TrainingRound) -> None:
        self.learnt = current.upto
        self._round = None
