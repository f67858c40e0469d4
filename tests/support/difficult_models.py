"""Factories of models that misbehave, and of models with unusual inputs and outputs."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn


@dataclass
class Answer:
    """A model's own output class."""

    scores: torch.Tensor
    extra: dict[str, Any]
    loss: torch.Tensor | None = None


class Structured(nn.Module):
    """Takes integers and a mask by name; returns a dataclass with one of its inputs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, scale: float = 1.0) -> Answer:
        hidden = self.embedding(ids) * mask.unsqueeze(-1)
        return Answer(self.out(hidden) * scale, {"hidden": (hidden, None), "ids": [ids, ids + 1]})


def structured() -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 5))
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    return Structured().eval(), {"ids": ids, "mask": mask, "scale": 2.0}


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def data_dependent() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Branches(), (torch.randn(9),)


class Twice(nn.Module):
    """Its exported program does not do what it does: the import must be found to be wrong."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (1.0 if torch.compiler.is_compiling() else 2.0)


def wrong_when_compiled() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Twice(), (torch.randn(9),)


def crashes() -> NoReturn:
    ctypes.string_at(0)
    raise AssertionError


def hangs() -> NoReturn:
    time.sleep(600)
    raise AssertionError


def needs_all_memory() -> NoReturn:
    kept = []
    while True:
        kept.append(bytearray(1 << 27))


def raises() -> NoReturn:
    raise RuntimeError("no weights\nanywhere")


def exits() -> NoReturn:
    raise SystemExit(3)


def returns_a_number() -> int:
    return 3


def forks_and_prints() -> tuple[nn.Module, dict[str, Any]]:
    if os.fork() == 0:
        time.sleep(600)
    print("hello")
    os.write(1, b"raw output")
    return structured()


class Sine(nn.Module):
    """Two layers before and after an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.after = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.after(torch.sin(self.before(x))))


def crashes_the_importer() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """TVM's importer ends the process at one of its operators."""
    from tlmd.models.parts import torch_graph
    from tlmd.models.pytorch import importer
    from tlmd.models.pytorch.operators import converters

    def crash(*_: Any) -> NoReturn:
        ctypes.string_at(0)
        raise AssertionError

    for module in (importer, torch_graph):
        module.converters = lambda: converters() | {"sin.default": crash}  # type: ignore[attr-defined]
    return Sine().eval(), (torch.randn(4, 32),)
