"""Lowers and runs small modules of PyTorch, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from torch import nn
from tvm import relax

from tlmd.data.model_spec import ModelSpec
from tlmd.lowering import lowering
from tlmd.lowering.preparation import LoweredModel, lower_source
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import resolve, tvm_target

INFO = resolve("native")


def lowered_module(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[LoweredModel, Any]:
    """The lowered module and its source."""
    source = from_module("layer", module, inputs)
    return lower_source(ModelSpec("layer"), source, INFO), source


def task_names(model: LoweredModel) -> list[str]:
    """The names of its tasks, sorted."""
    return sorted(task.name for task in model.tasks)


def error_of(model: LoweredModel, source: Any) -> float:
    """The largest error of the compiled model's only output."""
    ((got, want),) = outputs_of(model, source)
    return float(np.abs(got - want).max())


def outputs_of(model: LoweredModel, source: Any) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """The compiled model's outputs and the original's, on its own random inputs."""
    compiled = lowering.compile_model(model.lowered, tvm_target(INFO))
    machine = relax.VirtualMachine(compiled.executable, tvm.cpu())
    inputs = source.random_inputs(0)
    got = machine["main"](*map(tvm.runtime.tensor, inputs))
    return [(g.numpy(), w) for g, w in zip(got, source.reference(*inputs), strict=True)]
