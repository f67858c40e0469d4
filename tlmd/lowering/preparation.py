"""From a loaded model to its tasks: lower it, extract the tasks."""

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
from tlmd.models.parts.flow import Flow, Part
from tlmd.models.sources import SourceModel
from tlmd.space.hardware import target as targets


@dataclass
class LoweredModel:
    """A model, or a part of one, and its tasks. Only ``spec`` and ``tasks`` can be sent to other
    processes."""

    spec: ModelSpec

    source: Any
    """The loaded model, a `SourceModel`."""

    lowered: Any
    """The Relax module after the lowering."""

    tasks: list[Task]


@dataclass
class PreparedModel:
    """A model for one set of input shapes, with the parts of it that TVM compiles."""

    spec: ModelSpec

    source: SourceModel
    """The loaded model."""

    flow: Flow
    """Its parts; one, if TVM compiles all of it."""

    lowered: tuple[LoweredModel, ...]
    """The parts that TVM compiles, in their order."""

    can_be_run: bool = True
    """Whether inputs are known that the original takes."""

    @property
    def is_whole(self) -> bool:
        """Whether TVM compiles all of it."""
        return self.source.module is not None


def whole(model: LoweredModel) -> PreparedModel:
    """A model of which TVM compiles all."""
    inputs, outputs = len(model.source.inputs), model.source.outputs.tensors()
    takes = tuple(range(inputs))
    gives = tuple(inputs + number for number, _ in enumerate(outputs))
    flow = Flow((Part(takes, gives, model.source),), gives)
    return PreparedModel(model.spec, model.source, flow, (model,))


def merged_tasks(models: Sequence[LoweredModel]) -> list[Task]:
    """The tasks of all sets of input shapes, with their alternatives.

    The weights of a task that several sets have are added.
    """
    merged: dict[str, Task] = {}
    for task in (task for model in models for task in model.tasks):
        earlier = merged.get(task.id)
        merged[task.id] = replace(earlier, weight=earlier.weight + task.weight) if earlier else task
    if not models:
        return []
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
