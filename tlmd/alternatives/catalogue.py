"""All alternatives, and what the rest of tlmd asks of their declarations."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tlmd.alternatives.alternative import Alternative, SketchesOf
from tlmd.alternatives.amx.declaration import BY_MATRIX_UNIT
from tlmd.alternatives.attention.declaration import IN_BFLOAT16
from tlmd.alternatives.packed.declaration import BY_PANELS
from tlmd.alternatives.strassen.declaration import BY_PARTS
from tlmd.alternatives.winograd.declaration import BY_TILES

ALTERNATIVES: tuple[Alternative, ...] = (
    *BY_PANELS,
    *IN_BFLOAT16,
    *BY_MATRIX_UNIT,
    *BY_TILES,
    *BY_PARTS,
)
"""In the order in which they are tried. Of two with equal work the first one is measured first."""


def declared(name: str) -> Alternative | None:
    """The alternative with this name; None for `DIRECT`."""
    return next((one for one in ALTERNATIVES if one.name == name), None)


def multiplied(name: str) -> str:
    """The dtype that the alternative with this name multiplies, where it is a shorter one."""
    alternative = declared(name)
    return alternative.multiplies if alternative else ""


def by_matrix_unit(name: str) -> bool:
    """Whether the alternative with this name uses the CPU's matrix unit."""
    alternative = declared(name)
    return alternative is not None and alternative.by_matrix_unit


def make_weights(name: str, weights: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The weights of an alternative, of this shape, from those of the direct program.

    Raises `ValueError` for an alternative that has no weights of its own.
    """
    alternative = declared(name)
    if alternative is None or alternative.weights is None:
        raise ValueError(f"{name!r} is no alternative with weights of its own")
    return alternative.weights(weights, shape)


def sketches_by_block() -> dict[str, SketchesOf]:
    """What makes the sketches of a program, by the name of its block of products."""
    return {name: make for one in ALTERNATIVES for name, make in one.sketches.items()}


def products() -> tuple[str, ...]:
    """Names of the blocks that multiply by weights, with a kernel of vectors."""
    by_vectors = [one for one in ALTERNATIVES if one.weights and not one.by_matrix_unit]
    return tuple(dict.fromkeys(name for one in by_vectors for name in one.sketches))
