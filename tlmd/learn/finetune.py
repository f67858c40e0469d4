"""Fine-tuning: the checkpoint that all records so far teach, made anew whenever it is asked for."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tlmd.errors import BadInput
from tlmd.learn.demonstrations import policy
from tlmd.learn.gate import Question
from tlmd.learn.reading import Lesson, Patience, Reader
from tlmd.model.checkpoint import Checkpoint
from tlmd.model.ranker import Ranker
from tlmd.model.training import Demonstration, Trainer, TrainingPlan
from tlmd.types import Record, Task

QUESTIONS = 256  # how many are held out for the gate at most
_STARTS = ("base", "latest")
_AVERAGED = 10  # the loss of a report is the mean of so many last steps
Stop = Callable[[], bool]


@dataclass(frozen=True)
class FinePlan:
    """How each checkpoint is made; the same for every network preset.

    ``policy`` names what is trained on (`demonstrations.POLICIES`); ``start`` is ``base`` to learn
    everything anew from TLM-base each time (the paper) or ``latest`` to continue. ``steps`` are the
    optimiser's at most, ``rounds`` the ranker's new trees, ``held_out`` the share of candidates
    that nothing is ever trained on.
    """

    policy: str = "quality"
    start: str = "base"
    steps: int = 60
    learning_rate: float = 3e-4
    rounds: int = 20
    held_out: float = 0.05
    seed: int = 0
    device: str = "cpu"  # where the language model is trained, as torch names it


@dataclass(frozen=True)
class Report:
    """What making one checkpoint took and what it rests on.

    ``demonstrations`` of ``tasks`` were there to train on; ``loss`` is in nats per decided token
    over the last steps (0 without a step), ``seconds`` the whole of it. ``held_out`` is for the
    gate: at most `QUESTIONS`, one per task in turn, those measured last first.
    """

    version: int
    demonstrations: int
    tasks: int
    steps: int
    loss: float
    seconds: float
    held_out: tuple[Question, ...] = ()


class FineTuner:
    """Makes checkpoints from a base, which stays as it is, and from all records added so far.

    Raises `BadInput` for a plan with an unknown policy or start. One thread at a time.
    """

    def __init__(self, base: Checkpoint, plan: FinePlan = FinePlan()) -> None:
        if plan.start not in _STARTS:
            raise BadInput(f"unknown start {plan.start!r}; use one of {', '.join(_STARTS)}")
        self._select = policy(plan.policy)
        self._base = base
        self._plan = plan
        self._latest = base
        self._ranker = base.ranker
        self._tasks: dict[str, dict[str, Task]] = defaultdict(dict)
        self._records: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
        self._readers: dict[str, Reader] = {}

    def add(self, tasks: Sequence[Task], records: Sequence[Record]) -> None:
        """Add to what is learnt from; a newer record of a candidate replaces the older one.

        Records of tasks that have not been added wait for them.
        """
        for task in tasks:
            if task.module:
                self._tasks[task.id][task.target.fingerprint] = task
        for record in records:
            known = self._records[record.candidate.task_id, record.fingerprint]
            old = known.get(record.candidate.id)
            if old is None or record.created >= old.created:
                known[record.candidate.id] = record

    def follow(self, checkpoint: Checkpoint) -> None:
        """Continue from `checkpoint` where the plan starts from the latest one.

        For a restart, and after the registry has refused the latest one or rolled it back.
        """
        self._latest = checkpoint

    def train(self, version: int, stop: Stop) -> tuple[Checkpoint, Report]:
        """Make the checkpoint `version` from everything added so far.

        `stop` is asked after each step, tree and newly read record: once it says so, the checkpoint
        is what has been learnt until then, down to a copy of where it started (`Report.steps` 0).
        """
        begin = time.monotonic()
        lessons = self._lessons(stop)
        ranker = self._rank(lessons, stop)
        shown = [d for lesson in lessons for d in lesson.training]
        start = self._base if self._plan.start == "base" else self._latest
        model = copy.deepcopy(start.model)
        losses = self._fit(model, shown, version, stop)
        report = Report(
            version,
            len(shown),
            len({lesson.task_id for lesson in lessons if lesson.training}),
            len(losses),
            fmean(losses[-_AVERAGED:]) if losses else 0.0,
            time.monotonic() - begin,
            _questions(lessons),
        )
        notes = {
            "start": start.version,
            "policy": self._plan.policy,
            "records": sum(map(len, self._records.values())),
            "demonstrations": report.demonstrations,
            "tasks": report.tasks,
            "steps": report.steps,
            "loss": round(report.loss, 4),
            "seconds": round(report.seconds, 2),
        }
        self._latest = Checkpoint(version, self._base.preset, model, ranker, notes)
        return self._latest, report

    def _lessons(self, stop: Stop) -> list[Lesson]:
        """What can be learnt, per task and machine; those read by the time `stop` says so."""
        lessons, patience = [], Patience(stop)
        for (task_id, fingerprint), records in self._records.items():
            task = self._task(task_id, fingerprint)
            if task is None:
                continue
            reader = self._reader(task)
            if not reader.read(task, list(records.values()), patience):
                break
            lessons.append(
                reader.lesson(task, list(records.values()), self._select, self._plan.held_out)
            )
        return lessons

    def _task(self, task_id: str, fingerprint: str) -> Task | None:
        """The task as that machine sees it; where only others know it, as one of them does."""
        known = self._tasks.get(task_id, {})
        return known.get(fingerprint) or next(iter(known.values()), None)

    def _reader(self, task: Task) -> Reader:
        machine = task.target.fingerprint
        if machine not in self._readers:
            self._readers[machine] = Reader(self._base)
        return self._readers[machine]

    def _rank(self, lessons: list[Lesson], stop: Stop) -> Ranker:
        """Always the base's ranker with new trees, so that they do not pile up."""
        if stop():
            return self._ranker
        tables = [lesson.table for lesson in lessons]
        plan = self._plan
        adapted = self._base.ranker.adapt(tables, plan.rounds, plan.seed, stop)
        # A few trees are better than none, but not than all those of an earlier version.
        if not stop() or self._ranker is self._base.ranker:
            self._ranker = adapted
        return self._ranker

    def _fit(self, model: Any, shown: list[Demonstration], version: int, stop: Stop) -> list[float]:
        """Train `model` in place; the loss of each step."""
        if stop():
            return []
        plan = TrainingPlan(
            steps=self._plan.steps,
            learning_rate=self._plan.learning_rate,
            seed=self._plan.seed + version,
            decay=False,
        )
        model.to(self._plan.device)
        try:
            return Trainer(model, plan).fit(shown, lambda _step, _loss: not stop())
        finally:
            model.to("cpu")


def _questions(lessons: list[Lesson]) -> tuple[Question, ...]:
    """One of each lesson in turn, those measured last first, until there are enough."""
    newest = sorted(lessons, key=lambda lesson: -lesson.newest)
    longest = max((len(lesson.held_out) for lesson in newest), default=0)
    turns = (
        lesson.held_out[turn]
        for turn in range(longest)
        for lesson in newest
        if turn < len(lesson.held_out)
    )
    return tuple(question for question, _ in zip(turns, range(QUESTIONS), strict=False))
