"""The declaration of an alternative, and the programs that it is made from and makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.scheduling import SketchesOf
from tlmd.alternatives.weights import Shape

_MATRIX_UNIT = "amx-tile"
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


Find = Callable[[DirectProgram], Implementation | None]
MakeWeights = Callable[[NDArray[Any], Shape], NDArray[Any]]


@dataclass(frozen=True)
class Alternative:
    """An implementation that `catalogue.ALTERNATIVES` lists, such as Winograd's convolution."""

    name: str
    """Tasks and records store it, so it never changes."""

    find: Find
    """Makes this program from the direct one; None where it does not fit."""

    weights: MakeWeights | None = None
    """Converts a constant weight of the direct program to the shape of the parameter here, in
    numpy. None: no parameter has another shape."""

    sketches: Mapping[str, SketchesOf] = field(default_factory=dict)
    """Name of a block of products -> the sketches of programs with such a block. Programs without
    one are scheduled by TVM's rules."""

    exact: bool = True
    """Whether its arithmetic is the direct program's; else `--strict-numerics` leaves it out."""

    multiplies: str = ""
    """Dtype of what it multiplies, where that is shorter than the data's: `bfloat16`, `int8`, or
    `PARTS` of float32. A precision of the same name asks for it."""

    needs: tuple[str, ...] = ()
    """Features of the CPU, by LLVM's names. All of them work on vectors of 512 bits."""

    @property
    def by_matrix_unit(self) -> bool:
        """Whether the CPU's matrix unit multiplies, and not its vectors."""
        return _MATRIX_UNIT in self.needs
