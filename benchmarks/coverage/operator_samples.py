"""Calls of PyTorch operators, and samples of them from PyTorch's own operator database."""

from __future__ import annotations

import itertools
import sys
import types
import unittest
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Samples that are looked at per dtype, and how many of them are run.
_SEEN, _FLOATS, _OTHERS = 60, 2, 1
# PyTorch does not say which of equal elements these take; floats are hardly ever equal.
_ANY_OF_EQUALS = {"argsort", "kthvalue", "median", "mode", "sort", "topk"}


@dataclass(frozen=True)
class Call:
    """One call of an operator."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def module(self) -> tuple[Any, tuple[Any, ...]]:
        """A module that makes the call, and the tensors that it takes.

        It returns the tensors among the outputs as a flat tuple.
        """
        leaves, spec = pytree.tree_flatten((self.args, self.kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        function = self.function

        class Called(torch.nn.Module):
            def forward(self, *tensors: Any) -> tuple[Any, ...]:
                filled = list(leaves)
                for place, tensor in zip(places, tensors, strict=True):
                    filled[place] = tensor
                args, kwargs = pytree.tree_unflatten(filled, spec)
                outputs = pytree.tree_leaves(function(*args, **kwargs))
                return tuple(value for value in outputs if isinstance(value, torch.Tensor))

        tensors = tuple(leaves[place].detach().clone().contiguous() for place in places)
        return Called().eval(), tensors

    def shapes(self) -> str:
        """The shapes and dtypes of the tensors, and the other arguments."""
        texts = [
            f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
            if isinstance(leaf, torch.Tensor)
            else str(leaf)
            for leaf in pytree.tree_leaves((self.args, self.kwargs))
        ]
        return f"of {' '.join(texts)}"[:100]


def database() -> list[Any]:
    """PyTorch's operator database. Its module asks for a test package that it does not need."""
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def samples(info: Any) -> list[Call]:
    """A few calls of an operator: float32, or the first dtype that it has; int64; bool."""
    allowed = info.dtypes
    first = torch.float32 if torch.float32 in allowed else next(iter(allowed))
    others = () if info.name in _ANY_OF_EQUALS else (torch.int64, torch.bool)
    counts = {first: _FLOATS}
    counts |= {dtype: _OTHERS for dtype in others if dtype in allowed and dtype != first}
    calls = []
    for dtype, count in counts.items():
        torch.manual_seed(0)
        seen = itertools.islice(info.sample_inputs("cpu", dtype), _SEEN)
        samples = [sample for sample in seen if not _is_empty(sample)]
        # Spread over the list: neighbours differ little.
        for index in sorted({i * (len(samples) - 1) // max(count - 1, 1) for i in range(count)}):
            if 0 <= index < len(samples):
                sample = samples[index]
                values = (sample.input, *sample.args)
                calls.append(Call(info.name, info.op, values, dict(sample.kwargs)))
    return calls


def _is_empty(sample: Any) -> bool:
    """Whether a tensor has no elements; tlmd refuses these."""
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return any(isinstance(leaf, torch.Tensor) and leaf.numel() == 0 for leaf in leaves)
