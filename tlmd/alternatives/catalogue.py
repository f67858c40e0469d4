"""All alternatives, and what the rest of tlmd asks of their declarations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray
from tvm.s_tir import Schedule

from tlmd.alternatives.alternative import DIRECT, Alternative
from tlmd.alternatives.amx.declaration import BY_MATRIX_UNIT
from tlmd.alternatives.attention.declaration import ATTENTION_BF16
from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.packed.declaration import BY_PANELS
from tlmd.alternatives.scheduling import StageSchedule
from tlmd.alternatives.strassen.declaration import BY_PARTS
from tlmd.alternatives.weights import Shape
from tlmd.alternatives.winograd.declaration import BY_TILES

ALTERNATIVES = (*BY_PANELS, ATTENTION_BF16, *BY_MATRIX_UNIT, *BY_TILES, *BY_PARTS)
"""In the order in which they are tried. Of two with equal work the first one is measured first."""
_DIRECT = Alternative(DIRECT, find=lambda direct: direct)
_PARALLEL = "meta_schedule.parallel"


def declared(name: str) -> Alternative:
    """The declaration for `Task.alternative`; that of the direct program for any other name."""
    return next((one for one in ALTERNATIVES if one.name == name), _DIRECT)


def make_weights(name: str, weights: NDArray[Any], shape: Shape) -> NDArray[Any]:
    """The weights of an alternative, of this shape, from those of the direct program.

    Raises `ValueError` for an alternative that has no weights of its own.
    """
    make = declared(name).weights
    if make is None:
        raise ValueError(f"{name!r} is no alternative with weights of its own")
    return make(weights, shape)


def products() -> tuple[str, ...]:
    """Names of the blocks that multiply by weights, with a kernel of vectors."""
    by_vectors = [one for one in ALTERNATIVES if one.weights and not one.by_matrix_unit]
    return tuple(dict.fromkeys(name for one in by_vectors for name in one.sketches))


def sketches(module: Any, unit: VectorUnit, parallel: int) -> Iterator[Any]:
    """The traces of the sketches; none where `module` is the program of no alternative.

    `unit`: vectors of the target; `parallel`: the default extent of parallel loops.
    """
    program = StageSchedule(Schedule(module), unit)
    by_block = {name: make for one in ALTERNATIVES for name, make in one.sketches.items()}
    for name in filter(by_block.__contains__, program.names):
        for build in by_block[name](program):
            schedule = Schedule(module, seed=1)
            build(StageSchedule(schedule, unit))
            schedule.annotate(schedule.get_sblock("root"), _PARALLEL, parallel)
            yield schedule.trace
