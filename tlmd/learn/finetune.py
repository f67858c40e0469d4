"""Fine-tuning: makes a checkpoint from all records so far, anew in every round."""

from __future__ import annotations

import copy
import random
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from tlmd.data.config import TrainConfig
from tlmd.data.types import Record, Task
from tlmd.learn.demonstrations import policy
from tlmd.learn.gate import HeldOut
from tlmd.learn.task_datasets import ReadBudget, RecordReader, TaskDataset
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.cost_model import CostModel
from tlmd.tlm.demonstration import TaskDemonstrations, count_demonstrations
from tlmd.tlm.network import Gpt2
from tlmd.tlm.training import Trainer, TrainingPlan

MAX_HELD_OUT = 64  # tasks for the gate
_BESIDE = 12  # sentences that a held-out one is compared with
HELD_OUT = 0.05  # share of candidates that nothing is ever trained on
_AVERAGED = 10  # last steps, whose mean is the reported loss
_TASKS_PER_STEP = 2
_WORST = 0.3  # `TrainingPlan.worst`, as TLM-base was trained
_TASKS_OF_A_ROUND = 16  # with more tasks a round takes more steps,
_MOST_ROUNDS = 8  # the factor by which rounds may grow, at most
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Report:
    """How one checkpoint was made."""

    version: int
    demonstrations: int
    """Sentences that could be trained on."""
    tasks: int
    """Tasks that they come from."""
    steps: int
    """Optimiser steps that were taken."""
    loss: float
    """Loss of the last steps, as in `TrainingPlan`; 0 without a step."""
    seconds: float
    held_out: tuple[HeldOut, ...] = ()
    """For the gate: at most `MAX_HELD_OUT` tasks, the newest first."""


class FineTuner:
    """Makes checkpoints from a base, which it does not change, and from the records added so far.

    `config` is the section ``train``; only the newest `config.window` records are kept. The share
    `held_out` of all candidates is never trained on. `device` is where the language model is
    trained, as torch names it. `replay` are demonstrations of the base's own training, which each
    round shows beside the new ones, so that nothing is forgotten. Not thread-safe. Raises
    `BadInput` for an unknown policy.
    """

    def __init__(
        self,
        base: Checkpoint,
        config: TrainConfig | None = None,
        seed: int = 0,
        device: str = "cpu",
        held_out: float = HELD_OUT,
        replay: Sequence[TaskDemonstrations] = (),
    ) -> None:
        self._config = config or TrainConfig()
        self._select = policy(self._config.policy)
        self._base = base
        self._seed = seed
        self._device = device
        self._held_out = held_out
        self._replay = replay
        self._latest = base
        self._cost_model = base.cost_model
        self._tasks: dict[str, dict[str, Task]] = defaultdict(dict)
        self._records: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
        self._readers: dict[str, RecordReader] = {}
        self._datasets: dict[tuple[str, str], TaskDataset] = {}
        """Data sets of tasks without new records since the last round."""
        self._age: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        """Task, machine and candidate of every record, the oldest first."""

    def add(self, tasks: Sequence[Task], records: Sequence[Record]) -> None:
        """Add tasks and records; a newer record of a candidate replaces the older one.

        Records whose task is unknown are kept until the task is added.
        """
        for task in tasks:
            if task.module:
                self._tasks[task.id][task.target.fingerprint] = task
                self._datasets.pop((task.id, task.target.fingerprint), None)
        for record in records:
            key = record.candidate.task_id, record.fingerprint
            by_candidate, name = self._records[key], record.candidate.id
            old = by_candidate.get(name)
            if old != record and (old is None or record.created >= old.created):
                by_candidate[name] = record
                self._datasets.pop(key, None)
                self._age[*key, name] = None
                self._age.move_to_end((*key, name))
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Keep the newest records. Tasks stay: the pipeline sends each of them once."""
        while len(self._age) > self._config.window:
            (task_id, machine, name), _ = self._age.popitem(last=False)
            key = task_id, machine
            del self._records[key][name]
            self._datasets.pop(key, None)
            task = self._task(*key)
            if task is not None:
                self._reader(task).forget(name)
            if not self._records[key]:
                del self._records[key]

    def follow(self, checkpoint: Checkpoint) -> None:
        """Use `checkpoint` as the latest one.

        For a restart, and after the registry has refused the latest one or rolled it back.
        """
        self._latest = checkpoint

    def train(self, version: int, stop: Stop, end: Stop | None = None) -> tuple[Checkpoint, Report]:
        """Make the checkpoint `version` from everything added so far.

        `stop` is called after each step, each tree and each newly read record. When it returns
        True, the checkpoint holds what was learnt until then; but unless `end` (`stop` where it is
        None) returns True, too, the round learns for ``train.seconds`` after reading. On a busy
        machine reading may take all the time, and a round without a step teaches nothing. Without
        one (`Report.steps` 0) the checkpoint is a copy of that where the round started.
        """
        begin = time.monotonic()
        datasets = self._read(stop)
        stop = self._after_least_time(stop, end or stop)
        cost_model = self._fit_cost_model(datasets, stop)
        newest = sorted(datasets, key=lambda dataset: -dataset.newest)
        shown = [d.training for d in newest if d.training.demonstrations]
        start = self._base if self._config.start == "base" else self._latest
        model = copy.deepcopy(start.model)
        losses = self._fit(model, shown, version, stop)
        report = Report(
            version,
            count_demonstrations(shown),
            len({task.task_id for task in shown}),
            len(losses),
            fmean(losses[-_AVERAGED:]) if losses else 0.0,
            time.monotonic() - begin,
            _held_out_examples(datasets),
        )
        notes = self._notes(report, start.version)
        self._latest = Checkpoint(version, self._base.preset, model, cost_model, notes)
        return self._latest, report

    def _notes(self, report: Report, start: int) -> dict[str, Any]:
        return {
            "start": start,
            "policy": self._config.policy,
            "records": sum(map(len, self._records.values())),
            "demonstrations": report.demonstrations,
            "tasks": report.tasks,
            "steps": report.steps,
            "loss": round(report.loss, 4),
            "seconds": round(report.seconds, 2),
        }

    def _read(self, stop: Stop) -> list[TaskDataset]:
        """The training data per task and machine, of the tasks that are read before `stop`.

        Only tasks with new records are read and made again.
        """
        datasets, budget = [], ReadBudget(stop)
        for key, records in self._records.items():
            dataset = self._datasets.get(key)
            if dataset is None:
                task = self._task(*key)
                if task is None:
                    continue
                reader, measured = self._reader(task), list(records.values())
                if not reader.read(task, measured, budget):
                    break
                dataset = reader.dataset(task, measured, self._select, self._held_out)
                if reader.knows(measured):
                    self._datasets[key] = dataset
            datasets.append(dataset)
        return datasets

    def _task(self, task_id: str, fingerprint: str) -> Task | None:
        """The task on that machine; where only other machines have it, the task of one of them."""
        by_target = self._tasks.get(task_id, {})
        return by_target.get(fingerprint) or next(iter(by_target.values()), None)

    def _reader(self, task: Task) -> RecordReader:
        machine = task.target.fingerprint
        if machine not in self._readers:
            self._readers[machine] = RecordReader()
        return self._readers[machine]

    def _fit_cost_model(self, datasets: list[TaskDataset], stop: Stop) -> CostModel:
        """The base's cost model with new trees; always the base's, so that trees do not pile up."""
        if stop():
            return self._cost_model
        tables = [dataset.table for dataset in datasets]
        adapted = self._base.cost_model.adapt(tables, self._config.rounds, self._seed, stop)
        # A few trees are better than none, but worse than all those of an earlier version.
        if not stop() or self._cost_model is self._base.cost_model:
            self._cost_model = adapted
        return self._cost_model

    def _after_least_time(self, stop: Stop, end: Stop) -> Stop:
        """Stop when `end` says so; when `stop` does, after the least time from now on."""
        until = time.monotonic() + self._config.seconds
        return lambda: end() or (stop() and time.monotonic() >= until)

    def _fit(
        self, model: Gpt2, shown: list[TaskDemonstrations], version: int, stop: Stop
    ) -> list[float]:
        """Train `model` in place; the loss of each step."""
        if stop():
            return []
        more = min(max(len(shown) / _TASKS_OF_A_ROUND, 1), _MOST_ROUNDS)
        plan = TrainingPlan(
            steps=round(self._config.steps * more),
            tasks_per_step=_TASKS_PER_STEP,
            learning_rate=self._config.learning_rate,
            seed=self._seed + version,
            decay=False,
            worst=_WORST,
        )
        # As many as the steps can show, the newest first, and as many of the base's training.
        shown = shown[: plan.steps * _TASKS_PER_STEP]
        rng = random.Random(plan.seed)
        replayed = rng.sample(self._replay, min(len(shown), len(self._replay)))
        model.to(self._device)
        try:
            return Trainer(model, plan).fit([*shown, *replayed], lambda _step, _loss: not stop())
        finally:
            model.to("cpu")


def _held_out_examples(datasets: list[TaskDataset]) -> tuple[HeldOut, ...]:
    """One per dataset that has any, newest datasets first."""
    newest = sorted(datasets, key=lambda dataset: -dataset.newest)
    compared = [d for d in newest if d.held_out.demonstrations][:MAX_HELD_OUT]
    return tuple(_to_compare(d.held_out, d.training) for d in compared)


def _to_compare(held_out: TaskDemonstrations, others: TaskDemonstrations) -> HeldOut:
    own = held_out.demonstrations
    both = replace(held_out, demonstrations=own + others.demonstrations[-_BESIDE:])
    return HeldOut(both, len(own))
