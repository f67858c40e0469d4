"""How torch computes here: on which device, and with how many threads.

The threads are limited, so that processes do not share cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def use_threads(count: int) -> None:
    """Make torch compute with `count` threads, at least one."""
    torch.set_num_threads(max(1, count))


@contextmanager
def one_thread() -> Iterator[None]:
    """Make torch compute with one thread during the block.

    The TLM is so small that several threads spend their time waiting for each other.
    """
    before = torch.get_num_threads()
    use_threads(1)
    try:
        yield
    finally:
        use_threads(before)


def best_device() -> str:
    """``cuda`` where this process sees a card (Ray gives one to whom it belongs), else ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"
