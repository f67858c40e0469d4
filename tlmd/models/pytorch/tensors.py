"""Tensors of PyTorch as numpy arrays and back, bfloat16 included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tlmd.models.sources import numpy_dtype

if TYPE_CHECKING:
    import torch


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
