"""Tasks of which one program was measured, without measuring."""

from __future__ import annotations

from random import Random

from tlmd.data.types import Baseline, Outcome, Record, Status, Task
from tlmd.pipeline.task_state import TaskState
from tlmd.space.space import TaskSpace


def measured(task: Task, seconds: float, baseline_s: float = 1.0) -> TaskState:
    """What is known of a task whose only candidate takes `seconds`."""
    space = TaskSpace(task)
    drawn = (space.random(Random(seed), 0) for seed in range(100))
    candidate = next(c for c in drawn if space.sketches[0].allows(c.decisions))
    outcome = Outcome(Status.OK, (seconds,), verified=True, low=seconds, high=seconds)
    baseline = Baseline(task.id, baseline_s, task.target.fingerprint)
    return TaskState(task, [Record(candidate, outcome)], baseline)
