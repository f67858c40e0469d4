"""What a task computes, without names. The prompt of the language model is written from this."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write of a block: which buffer, and which iterators index which dimension.

    Example: ``Access(-1, "float32", (((0, 1),), ((1, 2), (4, 1))))`` reads ``A[i0, i1 * 2 + i4]``.
    """

    source: int
    """Index of the block that writes the buffer. -1: the buffer is an argument of the task."""

    dtype: str

    dims: tuple[tuple[tuple[int, int], ...], ...]
    """For each dimension, the ``(iterator, stride)`` terms of its index. If an index is not a sum
    of strided iterators, its terms are the iterators on which it depends, with stride 0."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a computation.

    Example: ``Block((("S", 128), ("R", 512)), (Access(...),), (Access(...),), ("mul", "add"))``.
    """

    iters: tuple[tuple[str, int], ...]
    """The iterators as ``(kind, extent)``. Kinds: ``"S"`` spatial, ``"R"`` reduction, ``"O"``
    other."""

    reads: tuple[Access, ...]
    writes: tuple[Access, ...]

    ops: tuple[str, ...]
    """The arithmetic operations of the block, such as ``"mul"``."""


@dataclass(frozen=True, slots=True)
class Computation:
    """What a task computes: its blocks in execution order, without names.

    Example: ``Computation((Block(...), Block(...)))``.
    """

    blocks: tuple[Block, ...]


class DecisionKind(enum.StrEnum):
    """What kind of instruction a decision belongs to."""

    TILE = "tile"
    PARTITION = "partition"
    CATEGORY = "category"
    LOCATION = "location"
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class OpenDecision:
    """One open decision of a sketch.

    Example: ``OpenDecision(DecisionKind.TILE, inst=11, extent=128, arity=4, limit=64, block=0)``.
    """

    kind: DecisionKind
    inst: int
    """Index of its instruction in the trace."""
    extent: int = 0
    """Extent of the loop that a tile splits; 0 where it is unknown."""
    arity: int = 1
    """Number of factors of a tile."""
    limit: int = 0
    """Largest innermost factor of a tile; 0: no limit."""
    options: tuple[int, ...] = ()
    """Values of a category or of a parallel extent, in the order of their indices. The options of
    a location depend on earlier decisions, so the space lists them."""
    partition: tuple[int, int] = (0, 1)
    """``(position, factor)`` of a partitioned tile: the product of the factors from that position
    on is a multiple of the factor."""
    block: int = -1
    """Index of the block in the computation; -1: the sketch has made the block."""
    iterator: int = 0
    """Index of the iterator in the block."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """One design space of a task.

    Example: ``Sketch(index=0, open_decisions=(...), steps=("tile:SSRSRS", "block0"))``.
    """

    index: int
    open_decisions: tuple[OpenDecision, ...]
    steps: tuple[str, ...] = ()
    """Words of the language that distinguish the sketches of a task."""
