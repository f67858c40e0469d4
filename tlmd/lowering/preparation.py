"""From the name of a model to its tasks: load the model, lower it, extract the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tlmd.data.errors import BadInput
from tlmd.data.model_spec import INT8, ModelSpec
from tlmd.data.types import TargetInfo, Task
from tlmd.lowering import lowering
from tlmd.lowering.alternatives import with_alternatives
from tlmd.lowering.passes import quantisation
from tlmd.models import frontends
from tlmd.models.sources import SourceModel
from tlmd.space.hardware import target as targets


@dataclass
class LoweredModel:
    """A model and its tasks. Only ``spec`` and ``tasks`` can be sent to other processes."""

    spec: ModelSpec

    source: Any
    """The loaded model, a `SourceModel`."""

    lowered: Any
    """The Relax module after the lowering."""

    tasks: list[Task]


def lower_sets(spec: ModelSpec, target: TargetInfo) -> list[LoweredModel]:
    """Load and lower a model in this process, once for each set of input shapes.

    Raises `BadInput` and `Failed`.
    """
    shared: dict[str, Any] = {}
    return [lower_source(one, source, target, shared) for one, source in frontends.load_sets(spec)]


def merged_tasks(models: Sequence[LoweredModel]) -> list[Task]:
    """The tasks of all sets of input shapes, with their alternatives.

    The weights of a task that several sets have are added.
    """
    merged: dict[str, Task] = {}
    for task in (task for model in models for task in model.tasks):
        earlier = merged.get(task.id)
        merged[task.id] = replace(earlier, weight=earlier.weight + task.weight) if earlier else task
    strict = any(model.spec.strict_numerics for model in models)
    return with_alternatives(merged.values(), strict, models[0].spec.precision)


def lower_source(
    spec: ModelSpec, source: SourceModel, target: TargetInfo, shared: dict[str, Any] | None = None
) -> LoweredModel:
    """Lower a loaded model to its tasks; some have none.

    Raises `BadInput` for a precision that the model cannot have.

    `shared` as in `lowering.lower`.
    """
    int8 = spec.precision == INT8
    if int8 and not quantisation.is_quantised(source.module):
        raise BadInput(
            f"{spec.name} is not quantised: {INT8} is for models with QuantizeLinear and "
            "DequantizeLinear; use --precision fp32 or bf16"
        )
    lowered = lowering.lower(source.module, targets.tvm_target(target), shared, int8=int8)
    tasks = lowering.extract(lowered, target)
    return LoweredModel(spec, source, lowered, tasks)
