"""One way to compute what a task computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tlmd.alternatives.kernel import VectorUnit

SPATIAL, REDUCTION = 0, 2  # kinds of iterators: IterVar.DataPar, IterVar.CommReduce
DIRECT = ""
"""`Task.alternative` of the program that computes as the model says."""
PER_WEIGHT = 24
"""How long it takes to read a weight from memory, in operations of a multiply-add loop. This and
the other costs of that kind are rough values, which only order what is tried first."""


@dataclass(frozen=True)
class Implementation:
    """One way to compute what a task computes."""

    module: Any
    flops: float

    work: float
    """Roughly how long it takes, in operations."""


@dataclass(frozen=True)
class DirectProgram(Implementation):
    """The program that computes as the model says, from which the others are made."""

    constants: Sequence[int]
    """Positions of the parameters that are constant weights."""

    unit: VectorUnit
    """Vectors of the target."""

    attention: str = ""
    """`Task.attention`; empty for a task that is none."""
