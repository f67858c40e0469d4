"""A PyTorch model that stays as it is: it is named, and made again where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tlmd.data.model_spec import ModelSpec
from tlmd.models import frontends
from tlmd.models.parts.torch_program import TorchProgram
from tlmd.models.pytorch.torch_frontend import FlatModel

KIND = "original"


class OriginalProgram(TorchProgram):
    """A model in eager PyTorch, with flat inputs and outputs."""

    def __init__(self, spec: ModelSpec, original: FlatModel) -> None:
        super().__init__(original.module)
        self._spec = spec

    def save(self, _folder: Path, _name: str) -> dict[str, Any]:
        """Nothing is written: only the model's name is kept."""
        return {"kind": KIND, "model": self._spec.model_dump(by_alias=True, exclude_defaults=True)}


def load(document: Mapping[str, Any]) -> OriginalProgram:
    """The program of `save`. Raises `BadInput` if the model cannot be made."""
    spec = ModelSpec(**document["model"])
    ((_, original),) = frontends.originals(spec)
    assert isinstance(original, FlatModel)
    return OriginalProgram(spec, original)
