"""The declaration of an alternative: everything that tlmd knows of it, beside its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from tlmd.alternatives.implementation import DirectProgram, Implementation
from tlmd.alternatives.scheduling import Sketch, StageSchedule

Find = Callable[[DirectProgram], Implementation | None]
MakeWeights = Callable[[NDArray[Any], tuple[int, ...]], NDArray[Any]]
SketchesOf = Callable[[StageSchedule], list[Sketch]]
_MATRIX_UNIT = "amx-tile"


@dataclass(frozen=True)
class Alternative:
    """An implementation that `catalogue.ALTERNATIVES` lists, such as Winograd's convolution."""

    name: str
    """Tasks and records store it, so it never changes."""

    find: Find
    """From the direct program to this one; None where it does not fit."""

    weights: MakeWeights | None = None
    """From constant weights and the shape of this program's parameter to its weights, in numpy.
    None: the program has no other weights."""

    sketches: Mapping[str, SketchesOf] = field(default_factory=dict)
    """From the name of a block of products, which only such programs have, to what makes the
    sketches of the program. TVM's rules schedule a program without such a block."""

    exact: bool = True
    """Whether it computes with the numbers of the direct program, as `--strict-numerics` wants."""

    multiplies: str = ""
    """Dtype of what it multiplies, where that is shorter than the data's: `bfloat16`, `int8`, or
    `PARTS` of float32. A precision of the same name asks for it."""

    needs: tuple[str, ...] = ()
    """Features of the CPU in LLVM's words. All known ones work on vectors of 512 bits."""

    @property
    def by_matrix_unit(self) -> bool:
        """Whether the CPU's matrix unit multiplies, and not its vectors."""
        return _MATRIX_UNIT in self.needs
