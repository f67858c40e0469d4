"""From the name of a model to its tasks: load the model, lower it, extract the tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tlmd.errors import Failed
from tlmd.model_spec import ModelSpec
from tlmd.space import target as targets
from tlmd.types import TargetInfo, Task
from tlmd.workloads import frontends, lowering


@dataclass
class LoweredModel:
    """A model and its tasks. Only ``spec`` and ``tasks`` can be sent to other processes."""

    spec: ModelSpec

    source: Any
    """The loaded model, a `SourceModel`."""

    lowered: Any
    """The Relax module after the lowering."""

    tasks: list[Task]


def lower_model(spec: ModelSpec, target: TargetInfo) -> LoweredModel:
    """Load and lower a model in this process. Raises `BadInput` and `Failed`."""
    return lower_source(spec, frontends.load(spec), target)


def lower_source(spec: ModelSpec, source: Any, target: TargetInfo) -> LoweredModel:
    """Lower a loaded model to its tasks. Raises `Failed` if it has none."""
    lowered = lowering.lower(source.module, targets.tvm_target(target))
    tasks = lowering.extract(lowered, target)
    if not tasks:
        raise Failed(f"{spec.name} has no tensor program to tune")
    return LoweredModel(spec, source, lowered, tasks)
