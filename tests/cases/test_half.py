"""Models in 16 and 64 bits work as what they are, and give what PyTorch gives in eager mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.cases import half_models
from tests.cases.half_models import Function, Made
from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import TargetInfo
from tlmd.lowering import acceptance, comparison
from tlmd.models import frontends
from tlmd.space.hardware import target as targets

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
# Two roundings of a number apart, of what the largest output is.
CLOSE = {"float16": 5e-3, "bfloat16": 4e-2, "float64": 1e-6}
MADE: list[Made] = []
SLOW = {"recurrent", "transformer", "resize", "activations"}


def made() -> Made:
    """The factory of all models here."""
    return MADE[-1]


@pytest.fixture
def target() -> Iterator[TargetInfo]:
    yield targets.resolve("native", 1)
    MADE.clear()


def error_of(model: Made, target: TargetInfo) -> float:
    """The error of a model that is accepted, after its outputs were compared with PyTorch's."""
    MADE.append(model)
    accepted = acceptance.accept(ModelSpec(f"{__name__}:made"), target)
    assert accepted.error is not None and accepted.tasks and not accepted.notes
    return accepted.error


def slow_ones_marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in names]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", slow_ones_marked(half_models.layers()))
def test_layers(name: str, dtype: str, target: TargetInfo) -> None:
    torch.manual_seed(0)
    module, x = half_models.layers()[name]
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5)
    model = module.eval().to(DTYPES[dtype]), (x.to(DTYPES[dtype]),)
    assert error_of(model, target) < CLOSE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", slow_ones_marked(half_models.functions()))
def test_functions(name: str, dtype: str, target: TargetInfo) -> None:
    torch.manual_seed(0)
    function, x = half_models.functions()[name]
    assert error_of((Function(function).eval(), (x.to(DTYPES[dtype]),)), target) < CLOSE[dtype]


@pytest.mark.parametrize("name", half_models.mixed())
def test_models_of_several_dtypes(name: str, target: TargetInfo) -> None:
    torch.manual_seed(0)
    module, inputs = half_models.mixed()[name]
    assert error_of((module.eval(), inputs), target) < CLOSE["bfloat16"]


def test_a_float32_output_of_a_float32_model_is_compared_closely() -> None:
    MADE.append((torch.nn.Linear(4, 4).eval(), (torch.ones(2, 4),)))
    source = frontends.load(ModelSpec(f"{__name__}:made"))
    assert comparison.tolerated(source) == 0
    MADE.append((torch.nn.Linear(4, 4).eval().half(), (torch.ones(2, 4).half(),)))
    source = frontends.load(ModelSpec(f"{__name__}:made"))
    assert comparison.tolerated(source) == 2e-2
    ones = np.ones(4, np.float32)
    with pytest.raises(BadInput, match="wrongly"):
        comparison.check_output("m", "y", ones * np.float32(1.01), ones)
    assert comparison.check_output("m", "y", ones * np.float32(1.01), ones, 2e-2) < 2e-2


def test_bfloat16_weights_that_lie_anywhere_in_memory_are_imported(target: TargetInfo) -> None:
    module = torch.nn.Linear(8, 4).bfloat16()
    memory = torch.randn(33).bfloat16()
    module.weight = torch.nn.Parameter(memory[1:].reshape(4, 8))  # not aligned, as in a mapped file
    assert error_of((module.eval(), (torch.randn(2, 8).bfloat16(),)), target) < CLOSE["bfloat16"]
