"""The declaration of an alternative: everything that tlmd knows of it, beside its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from tlmd.alternatives.implementation import DirectProgram, Implementation
from tlmd.alternatives.scheduling import SketchesOf
from tlmd.alternatives.weights import Shape

Find = Callable[[DirectProgram], Implementation | None]
MakeWeights = Callable[[NDArray[Any], Shape], NDArray[Any]]
_MATRIX_UNIT = "amx-tile"


@dataclass(frozen=True)
class Alternative:
    """An implementation that `catalogue.ALTERNATIVES` lists, such as Winograd's convolution."""

    name: str
    """Tasks and records store it, so it never changes."""

    find: Find
    """Makes this program of the direct one; None where it does not fit."""

    weights: MakeWeights | None = None
    """Makes its weights, of a shape, of the direct ones in numpy. None: it has no others."""

    sketches: Mapping[str, SketchesOf] = field(default_factory=dict)
    """Name of a block of products -> the sketches of the programs that have it. Only programs of
    alternatives have blocks of these names; others are scheduled by TVM's rules."""

    exact: bool = True
    """Whether it computes with the numbers of the direct program, as `--strict-numerics` wants."""

    multiplies: str = ""
    """Dtype of what it multiplies, where that is shorter than the data's: `bfloat16`, `int8`, or
    `PARTS` of float32. A precision of the same name asks for it."""

    needs: tuple[str, ...] = ()
    """Features of the CPU, by LLVM's names. All of them work on vectors of 512 bits."""

    @property
    def by_matrix_unit(self) -> bool:
        """Whether the CPU's matrix unit multiplies, and not its vectors."""
        return _MATRIX_UNIT in self.needs
