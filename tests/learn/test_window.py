"""The trainer's memory is bounded, and only what is new is read and made again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.learning import ADD, GEMM, fresh, measured, never
from tlmd.data.config import TrainConfig
from tlmd.data.types import Record, Task
from tlmd.learn.finetune import FineTuner
from tlmd.learn.task_datasets import RecordReader, TaskDataset


def test_only_tasks_with_new_records_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    dataset = RecordReader.dataset

    def counted(
        self: RecordReader, task: Task, records: Sequence[Record], *rest: Any
    ) -> TaskDataset:
        made.append(task.id)
        return dataset(self, task, records, *rest)

    monkeypatch.setattr(RecordReader, "dataset", counted)
    adds = measured(ADD, 6)
    tuner = FineTuner(fresh(), TrainConfig(steps=0, rounds=1), held_out=0.0)
    tuner.add([GEMM, ADD], [*measured(GEMM, 6), *adds[:4]])
    assert tuner.train(1, never)[1].demonstrations == 10
    made.clear()
    tuner.add([], adds[:5])  # four of them are known
    assert tuner.train(2, never)[1].demonstrations == 11
    assert made == [ADD.id]
    made.clear()
    assert tuner.train(3, never)[1].demonstrations == 11
    assert made == []


def test_the_oldest_records_are_forgotten() -> None:
    tuner = FineTuner(fresh(), TrainConfig(steps=0, rounds=1, window=8), held_out=0.0)
    tuner.add([GEMM, ADD], measured(ADD, 4))
    tuner.train(1, never)
    records = measured(GEMM, 24)
    for start in range(0, 24, 4):
        tuner.add([], records[start : start + 4])
        checkpoint, report = tuner.train(2 + start, never)
    assert checkpoint.notes["records"] == 8 and report.demonstrations <= 8
    assert set(tuner._records) == {(GEMM.id, "here")}
    assert set(tuner._records[GEMM.id, "here"]) == {r.candidate.id for r in records[16:]}
    (reader,) = tuner._readers.values()
    assert len(reader._encoded) == len(reader._features._decided) == 8
    assert len(reader._features._made) <= 8
