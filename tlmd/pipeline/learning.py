"""The training part of the pipeline: train, publish, one after the other, beside the measuring."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tlmd.pipeline.board import Board
from tlmd.pipeline.orders import (
    Done,
    Failed,
    Kind,
    Lost,
    Published,
    PublishOrder,
    Trained,
    TrainOrder,
    Worker,
)
from tlmd.types import Record, Task


@dataclass
class _Lesson:
    """A version on its way: being trained, waiting for the registry, or with it."""

    version: int
    upto: int
    begun: float
    interrupted: float = 0.0
    trained: bool = False


class Learning:
    """Has the trainer learn from every completed batch, and the registry publish what came of it.

    ``version`` is the checkpoint in force, ``learnt`` the newest batch that a training has covered,
    whether or not the gate let its checkpoint through.
    """

    def __init__(self, board: Board, first: int) -> None:
        self.version = 0
        self.learnt = first - 1
        self.last: Trained | None = None
        self.wrap_up_s = 1.0  # from interrupting a training to its checkpoint being in force
        self._board = board
        self._next_version = 1
        self._lesson: _Lesson | None = None
        self._records: list[Record] = []  # committed, and not yet sent
        self._taught: set[tuple[str, str]] = set()
        self._fresh = True  # the trainer knows nothing

    @property
    def is_idle(self) -> bool:
        """No newer checkpoint is on its way."""
        return self._lesson is None

    def observe(self, records: list[Record]) -> None:
        """These were committed."""
        self._records += records

    def joined(self, worker: Worker) -> None:
        """The trainer or the registry is there, perhaps a new one."""
        if worker.kind is Kind.REGISTRY:
            self.version = worker.version
            self._next_version = max(self._next_version, worker.next_version)
        elif worker.kind is Kind.TRAINER:
            self._fresh = True

    def use(self, version: int) -> None:
        """Another version is in force, by somebody's wish."""
        self.version = version

    def hand_out(self, complete: int) -> None:
        """Train when a batch was completed since; publish what was trained."""
        lesson = self._lesson
        if lesson is None:
            idle = self._board.idle(Kind.TRAINER)
            if idle and complete > self.learnt:
                self._train(idle[0].name, complete)
        elif lesson.trained and not self._board.doing(PublishOrder):
            for registry in self._board.idle(Kind.REGISTRY):
                self._board.send(registry.name, PublishOrder(lesson.version))

    def _train(self, trainer: str, upto: int) -> None:
        if self._fresh:
            self._records = self._board.store.all_records()
            self._taught.clear()
        ripe = [r for r in self._records if r.batch <= upto]
        self._records = [r for r in self._records if r.batch > upto]
        tasks = self._untaught(ripe)
        order = TrainOrder(self._next_version, upto, tasks, tuple(ripe), self._fresh, self.version)
        self._fresh = False
        self._lesson = _Lesson(self._next_version, upto, self._board.crew.now())
        self._next_version += 1
        self._board.tell("training", version=order.version, upto=upto, records=len(ripe))
        self._board.send(trainer, order)

    def _untaught(self, records: list[Record]) -> tuple[Task, ...]:
        wanted = {(r.candidate.task_id, r.fingerprint) for r in records} - self._taught
        self._taught |= wanted
        if not self._board.states.keys() >= wanted:
            known = {t.key: t for t in self._board.store.tasks()}
            return tuple(known[key] for key in sorted(wanted) if key in known)
        return tuple(self._board.states[key].task for key in sorted(wanted))

    def boundary(self) -> None:
        """A checkpoint is wanted now: cut the training short, if it has had its time."""
        lesson = self._lesson
        if lesson is None or lesson.trained or lesson.interrupted:
            return
        now = self._board.crew.now()
        if now - lesson.begun >= self._board.rules.lesson_s:
            self.interrupt()

    def interrupt(self) -> None:
        """Have the trainer answer soon with what it has learnt."""
        if self._lesson is not None and not self._lesson.trained:
            self._lesson.interrupted = self._board.crew.now()
            self._board.crew.interrupt_training()

    def answer(self, event: Done | Lost | Failed) -> None:
        """The trainer or the registry answered, or did not."""
        lesson = self._lesson
        if lesson is None or getattr(event.order, "version", None) != lesson.version:
            return
        if isinstance(event.order, TrainOrder):
            self._trained(event, lesson)
        elif isinstance(event, Done) and isinstance(event.answer, Published):
            self._published(event.answer, lesson)
        elif isinstance(event, Failed):
            self._end(lesson)
            self._board.tell("publish_failed", version=lesson.version, error=event.error)
        # A registry that died is replaced and gets the order again.

    def _trained(self, event: Done | Lost | Failed, lesson: _Lesson) -> None:
        if isinstance(event, Done) and isinstance(event.answer, Trained):
            lesson.trained = True
            self.last = event.answer
            self._board.tell(
                "trained",
                version=lesson.version,
                upto=lesson.upto,
                steps=event.answer.steps,
                loss=event.answer.loss if math.isfinite(event.answer.loss) else None,
            )
        elif isinstance(event, Lost):
            self._lesson = None  # its successor learns everything anew, batch `upto` included
            self._fresh = True
            self._board.tell("training_lost", version=lesson.version)
        else:
            self._end(lesson)
            error = event.error if isinstance(event, Failed) else ""
            self._board.tell("training_failed", version=lesson.version, error=error)

    def _published(self, answer: Published, lesson: _Lesson) -> None:
        now = self._board.crew.now()
        if lesson.interrupted:
            self.wrap_up_s = 0.5 * (self.wrap_up_s + now - lesson.interrupted)
        self._end(lesson)
        if answer.accepted:
            self.version = answer.version
            self._board.tell("published", version=answer.version, upto=lesson.upto)
        else:
            self._board.tell("refused", version=answer.version, reason=answer.reason)

    def _end(self, lesson: _Lesson) -> None:
        self.learnt = lesson.upto
        self._lesson = None
