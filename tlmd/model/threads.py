"""The number of threads of torch. It is limited, so that processes do not share cores."""

from __future__ import annotations

import torch


def use_threads(count: int) -> None:
    """Make torch compute with `count` threads, at least one."""
    torch.set_num_threads(max(1, count))
