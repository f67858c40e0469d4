"""What a run of a PyTorch module depends on and changes: its buffers, and random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def kept_state(module: Any) -> Iterator[None]:
    """In this context a module may run; afterwards its buffers are what they were."""
    import torch

    holders = [part for part in module.modules() if part._buffers]
    before = [
        (part, name, value, value.detach().clone(), value._version)
        for part in holders
        for name, value in part._buffers.items()
        if value is not None and not value.is_inference()
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for part, name, value, copy, version in before:
                if value._version != version:
                    value.copy_(copy)
                if part._buffers.get(name) is not value:
                    part._buffers[name] = value


@contextmanager
def seeded() -> Iterator[None]:
    """In this context PyTorch draws the same random numbers each time."""
    import torch

    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        yield
