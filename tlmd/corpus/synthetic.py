"""Synthetic training tasks: operators with epilogues, over shapes that networks rarely have."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, nn

from tlmd.corpus.synthetic_operators import USUAL, Operator, draw
from tlmd.data.types import TargetInfo, Task

_PER_MODULE = 24  # operators that are lowered together
_LEAST_FLOPS, _MOST_FLOPS = 5e4, 4e8


def synthetic_tasks(
    target_info: TargetInfo,
    excluded: Collection[str],
    count: int = 2000,
    seed: int = 0,
    shares: Sequence[float] = USUAL,
) -> Iterator[list[Task]]:
    """Yield `count` tasks or a few more in portions, each task once, in a random order.

    The ids in `excluded` are left out. Tasks that only move data are left out too. `shares` are
    those of the kinds of operators: `USUAL`, `SELDOM` or `JOINED`.
    """
    seen = set(excluded)
    rng = random.Random(seed)
    while count > 0:
        by_key = {
            task.id: task
            for task in _tasks([draw(rng, shares) for _ in range(_PER_MODULE)], target_info)
        }
        new = [task for key, task in by_key.items() if key not in seen]
        seen |= set(by_key)
        rng.shuffle(new)
        count -= len(new)
        yield new


class _Operators(nn.Module):
    """Several operators, each with its own inputs."""

    def __init__(self, operators: list[Operator]) -> None:
        super().__init__()
        self.modules_of = nn.ModuleList(operator.module for operator in operators)
        self.arity = [len(operator.inputs) for operator in operators]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        left = list(inputs)
        outputs = []
        for module, arity in zip(self.modules_of, self.arity, strict=True):
            outputs.append(module(*left[:arity]))
            left = left[arity:]
        return tuple(outputs)


def _tasks(operators: list[Operator], target_info: TargetInfo) -> list[Task]:
    from tlmd.lowering import lowering
    from tlmd.models.pytorch.torch_frontend import from_module
    from tlmd.space.hardware.target import tvm_target

    module = _Operators(operators).to_empty(device="cpu").eval().requires_grad_(False)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.05)
    inputs = tuple(torch.randn(shape) for operator in operators for shape in operator.inputs)
    source = from_module("synthetic", module, inputs)
    tasks = lowering.extract(lowering.lower(source.module, tvm_target(target_info)), target_info)
    return [task for task in tasks if _LEAST_FLOPS <= task.flops <= _MOST_FLOPS]
