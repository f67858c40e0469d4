"""Where a network runs."""

from __future__ import annotations

import torch


def best_device() -> str:
    """``cuda`` where this process sees a card (Ray gives one to whom it belongs), else ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"
