"""The model of the real job: one small GEMM with many schedules, so that the job does not end."""

from __future__ import annotations

import torch
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def make() -> Made:
    torch.manual_seed(0)
    return nn.Linear(256, 192).eval(), (torch.randn(96, 256),)
