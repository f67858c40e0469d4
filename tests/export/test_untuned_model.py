"""The untuned model is compiled where it is timed, and where nothing else can say what is right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support import small_network
from tests.support.measured_tasks import measured
from tlmd.data.model_spec import ModelSpec
from tlmd.export import untuned_model
from tlmd.export.library import library_entry
from tlmd.export.result import Result
from tlmd.export.untuned_model import UntunedModel
from tlmd.export.whole_model_times import WholeModelTimer
from tlmd.lowering.preparation import LoweredModel, lower_source
from tlmd.models import frontends
from tlmd.space.hardware.target import resolve

_TARGET = resolve("native", 1)


class Refusing(small_network.Net):
    """It runs on its example, which is of zeros, but not on random inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling() and x.any():
            raise ValueError("only zeros are valid")
        return super().forward(x)


def make_refusing() -> small_network.Made:
    return Refusing(8, 3).eval(), (torch.zeros(1, 3, 8, 8),)


def _lowered(name: str) -> LoweredModel:
    spec = ModelSpec(name)
    return lower_source(spec, frontends.load(spec), _TARGET)


def _prepared(model: LoweredModel, seconds: float, folder: Path) -> UntunedModel:
    """The untuned model, each of whose tasks takes so long."""
    states = [measured(task, seconds, seconds) for task in model.tasks]
    (found,) = untuned_model.prepare([model], Result("network", _TARGET, 0, states), folder)
    return found


@pytest.mark.parametrize(("seconds", "is_timed"), [(0.1, True), (0.2, False)])
def test_only_those_that_are_timed_are_compiled(
    seconds: float, is_timed: bool, tmp_path: Path
) -> None:
    model = _lowered("tests.support.small_network:make")
    found = _prepared(model, seconds, tmp_path)
    assert found.sum_ms == pytest.approx(1e3 * seconds * sum(task.weight for task in model.tasks))
    assert (found.is_timed, found.path.exists()) == (is_timed, is_timed)
    assert found.library() == found.path and found.path.exists()


@pytest.mark.slow
def test_a_model_that_cannot_be_run_is_compared_with_the_untuned_one(tmp_path: Path) -> None:
    model = _lowered("tests.export.test_untuned_model:make_refusing")
    found = _prepared(model, 2.0, tmp_path)
    assert not found.path.exists()
    tuned = _prepared(model, 1.0, tmp_path).library().rename(tmp_path / "tuned.so")
    inputs = model.source.random_inputs(0)
    with WholeModelTimer(model.spec, inputs, (0,), tmp_path) as timer:
        times = timer.measure(
            lambda: library_entry(str(found.library()), model.source.inputs),
            library_entry(str(tuned), model.source.inputs),
            times_untuned=found.is_timed,
        )
    assert found.path.exists()
    assert (times.untuned_ms, times.pytorch_ms, times.max_abs_err) == (None, None, 0.0)
    assert times.tuned_ms > 0
