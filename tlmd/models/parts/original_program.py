"""A PyTorch model that stays as it is: it is named, and made again where it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tlmd.data.model_spec import ModelSpec
from tlmd.models import frontends
from tlmd.models.pytorch.tensors import to_torch
from tlmd.models.pytorch.torch_frontend import FlatModel

KIND = "original"


class OriginalProgram:
    """A model in eager PyTorch, with flat inputs and outputs."""

    def __init__(self, spec: ModelSpec, original: FlatModel) -> None:
        self._spec, self._module = spec, original.module

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Run it. Arrays of numpy become tensors."""
        tensors = [to_torch(value) if isinstance(value, np.ndarray) else value for value in values]
        with torch.no_grad():
            return list(self._module(*tensors))

    def save(self, _folder: Path, _name: str) -> dict[str, Any]:
        """Nothing is written: only the model's name is kept."""
        return {"kind": KIND, "model": self._spec.model_dump(by_alias=True, exclude_defaults=True)}


def load(document: Mapping[str, Any]) -> OriginalProgram:
    """The program of `save`. Raises `BadInput` if the model cannot be made."""
    spec = ModelSpec(**document["model"])
    ((_, original),) = frontends.originals(spec)
    assert isinstance(original, FlatModel)
    return OriginalProgram(spec, original)
