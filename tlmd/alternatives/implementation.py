"""One way to compute what a task computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SPATIAL, REDUCTION = 0, 2  # kinds of iterators: IterVar.DataPar, IterVar.CommReduce
DIRECT = ""
PER_WEIGHT = 24
"""How long it takes to read a weight from memory, in operations of a multiply-add loop. This and
the other costs of that kind are rough values, which only order what is tried first."""


@dataclass(frozen=True)
class Implementation:
    """One way to compute what a task computes."""

    name: str
    """As in `transforms.transform`; `DIRECT`: as the model says."""

    module: Any
    flops: float

    work: float
    """Roughly how long it takes, in operations."""
