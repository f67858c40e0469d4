"""How many threads torch may use: those of one process must not take the cores of another."""

from __future__ import annotations

import torch


def use_threads(count: int) -> None:
    """Compute with `count` threads from now on."""
    torch.set_num_threads(max(1, count))
