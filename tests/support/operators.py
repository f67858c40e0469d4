"""Helpers of tests of PyTorch operators: modules of functions, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import tvm
from torch import nn
from tvm import relax

from tlmd.lowering import lowering
from tlmd.models.pytorch.normalise import normalise
from tlmd.models.pytorch.operators import converters
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import resolve, tvm_target

TARGET = tvm_target(resolve("native"))
KNOWN = converters()


class Calls(nn.Module):
    """The outputs of several functions of the same inputs, as one tuple."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        outputs: list[Any] = []
        for function in self.functions:
            output = function(*inputs)
            outputs += output if isinstance(output, (tuple, list)) else [output]
        return tuple(outputs)


def normalised(module: nn.Module, *inputs: Any) -> Any:
    """The normalised program, after a check that it gives the same outputs in PyTorch."""
    program = torch.export.export(module.eval(), inputs, strict=False)
    program = normalise(program, KNOWN)
    with torch.no_grad():
        got, wanted = program.module()(*inputs), module(*inputs)
    for value, right in zip(got, wanted, strict=True):
        assert value.dtype == right.dtype
        torch.testing.assert_close(value, right, equal_nan=True)
    return program


def lowered_outputs(module: nn.Module, *inputs: Any) -> list[np.ndarray]:
    source = from_module("operators", module.eval(), inputs)
    compiled = lowering.compile_model(lowering.lower(source.module, TARGET), TARGET)
    machine = relax.VirtualMachine(compiled.executable, tvm.cpu())
    outputs = machine["main"](*(tvm.runtime.tensor(value.numpy()) for value in inputs))
    return [output.numpy() for output in outputs]
