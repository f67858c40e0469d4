"""Tensors of PyTorch as numpy arrays and back, bfloat16 included."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from tlmd.models.sources import numpy_dtype

if TYPE_CHECKING:
    import torch


def is_torch(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value is a tensor of PyTorch. It does not load PyTorch."""
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def as_array(value: Any) -> Any:
    """A tensor as an array; other values, such as a list of arrays, as they are."""
    return to_numpy(value) if is_torch(value) else value


def as_tensor(value: Any) -> Any:
    """An array of numbers as a tensor with a copy of them; other values as they are."""
    numbers = isinstance(value, np.ndarray) and value.dtype.kind not in "OUS"
    return to_torch(value) if numbers else value


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The values of a tensor; without a copy where it is on the CPU and contiguous."""
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        bits: np.ndarray = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(numpy_dtype("bfloat16"))
    array: np.ndarray = tensor.numpy()
    return array


def to_torch(array: np.ndarray) -> torch.Tensor:
    """A tensor with a copy of the values."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
