"""Which alternative is tried first: the one that does the least work by a rough estimate."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from tlmd.data.model_spec import ModelSpec
from tlmd.lowering.alternatives import with_alternatives
from tlmd.lowering.preparation import lower_source
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import resolve

TARGET = resolve(json.dumps({"kind": "llvm", "mcpu": "znver4", "num-cores": 1}))


@pytest.mark.parametrize(
    ("layer", "shape", "first"),
    [
        (nn.Conv2d(64, 64, 3, padding=1), (1, 64, 56, 56), "winograd4"),
        (nn.Conv2d(512, 512, 3, padding=1), (1, 512, 7, 7), "winograd2"),
        # Four groups share a vector: four times the products, but no more tiles.
        (nn.Conv2d(128, 128, 3, padding=1, groups=32), (1, 128, 56, 56), "winograd4"),
        # Of 16 x 16 outputs 14 x 14 are needed, and a sum of 16 products is short.
        (nn.Conv2d(512, 512, 3, padding=1, groups=32), (1, 512, 14, 14), "winograd2"),
        (nn.Conv2d(64, 128, 3, 2, padding=1), (1, 64, 56, 56), "packed"),
        # Sums of halves of 3136 rows leave the cache.
        (nn.Conv2d(256, 256, 1), (1, 256, 56, 56), "packed"),
        (nn.Linear(768, 2304), (128, 768), "strassen2"),
        (nn.Linear(512, 1000), (1, 512), "packed"),
    ],
)
def test_what_was_the_fastest_on_the_device_is_tried_first(
    layer: nn.Module, shape: tuple[int, ...], first: str
) -> None:
    source = from_module("layer", layer.eval(), (torch.randn(shape),))
    model = lower_source(ModelSpec("layer"), source, TARGET)
    (task,) = (task for task in model.tasks if task.constants)
    assert with_alternatives([task])[0].alternative == first
