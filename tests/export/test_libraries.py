"""Compiled models of jobs that are not finished: every function has a program that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from tests.support import small_network
from tests.support.measured_tasks import measured
from tests.system.card_daemon import CARD
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import TargetInfo
from tlmd.export import libraries, whole_model
from tlmd.export.library import load_machine
from tlmd.export.result import Result
from tlmd.lowering.preparation import LoweredModel, lower_source
from tlmd.models.pytorch import torch_frontend
from tlmd.pipeline.task_state import TaskState
from tlmd.space.hardware.target import resolve


def lowered_for(target: TargetInfo) -> LoweredModel:
    source = torch_frontend.from_module("network", *small_network.make())
    return lower_source(ModelSpec("network"), source, target)


def test_tasks_that_were_not_measured_yet_keep_the_default(tmp_path: Path) -> None:
    target = resolve("native", 1)
    model = lowered_for(target)
    first, *others = model.tasks
    states = [measured(first, 1e-6, 1.0), *(TaskState(task, [], None) for task in others)]
    (library,) = libraries.tuned([model], Result("network", target, 0, states), tmp_path)
    machine = load_machine(library.path)
    inputs = model.source.random_inputs(0)
    found = machine["main"](*map(tvm.runtime.tensor, inputs))
    assert model.source.reference is not None
    (want,) = model.source.reference(*inputs)
    np.testing.assert_allclose(found[0].numpy(), want, rtol=1e-4, atol=1e-5)


def test_for_a_card_what_has_no_faster_program_is_bound_to_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lowered_for(CARD)
    first, second, *others = model.tasks
    states = [measured(first, 1e-6, 1.0), measured(second, 1.0, 1e-6)]
    states += [TaskState(task, [], None) for task in others]
    executables = []
    monkeypatch.setattr(whole_model, "link", lambda made, _path: executables.append(made))
    (compiled,) = libraries.tuned([model], Result("network", CARD, 0, states), tmp_path)
    assert (compiled.functions, compiled.functions_with_record) == (len(model.tasks), 1)
    source = cuda_source(executables[0].mod)
    # Without a kernel the host itself would write to the memory of the card.
    for task in model.tasks:
        assert f"{task.name}_kernel" in source, task.name


def cuda_source(module: Any) -> str:
    """The source code of all modules for CUDA below `module`."""
    own = module.inspect_source() if module.kind == "cuda" else ""
    return "".join([own, *map(cuda_source, module.imports)])
