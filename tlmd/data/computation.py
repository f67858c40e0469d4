"""Computations of tasks, without names. The prompt of the language model is written from this."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


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
    """The computation of a task: its blocks in execution order, without names.

    Example: ``Computation((Block(...), Block(...)))``.
    """

    blocks: tuple[Block, ...]


class DecisionKind(enum.StrEnum):
    """The kind of the instruction of a decision."""

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
class FactorLimit:
    """The product of some factors of tiles must be from `low` to `high`.

    Example: ``FactorLimit(((0, 2), (1, 2)), 32, 1024)``: the threads of a block on a GPU.
    """

    factors: tuple[tuple[int, int], ...]
    """``(index of the open decision, position of the factor)``."""
    low: int
    high: int

    def allows(self, decisions: Sequence[Sequence[int]]) -> bool:
        """Whether complete decisions keep to it."""
        return self.low <= self._product(decisions) <= self.high

    def asks_for_more(self, decisions: Sequence[Sequence[int]]) -> bool:
        """Whether the product of complete decisions is too small."""
        return self._product(decisions) < self.low

    def growing(self) -> tuple[tuple[int, int], ...]:
        """The factors that make the product larger."""
        return self.factors

    def _product(self, decisions: Sequence[Sequence[int]]) -> int:
        return prod(decisions[index][position] for index, position in self.factors)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The parts of buffers that are copied together must fit into `high` bytes.

    Example: ``MemoryLimit((CopiedBuffer(4, (...)), CopiedBuffer(4, (...))), 49152)``: the shared
    memory of a block on a GPU.
    """

    buffers: tuple[CopiedBuffer, ...]
    high: int

    def allows(self, decisions: Sequence[Sequence[int]]) -> bool:
        """Whether complete decisions keep to it."""
        return sum(buffer.nbytes(decisions) for buffer in self.buffers) <= self.high

    def growing(self) -> tuple[tuple[int, int], ...]:
        """The factors that make the parts larger."""
        terms = (term for buffer in self.buffers for dim in buffer.dims for term in dim)
        return tuple(dict.fromkeys(factor for _, _, factors in terms for factor in factors))


@dataclass(frozen=True, slots=True)
class CopiedBuffer:
    """The part of a buffer that is copied; its size depends on factors of tiles."""

    element_bytes: int
    dims: tuple[tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...], ...]
    """For each dimension its terms ``(stride, extent, factors)``: an iterator that takes as many
    values as its extent times the product of the factors, as in `FactorLimit`."""

    def nbytes(self, decisions: Sequence[Sequence[int]]) -> int:
        """Its size for complete decisions."""
        size = self.element_bytes
        for dim in self.dims:
            span = 1
            for stride, extent, factors in dim:
                values = extent * prod(decisions[index][position] for index, position in factors)
                span += stride * (values - 1)
            size *= span
        return size


@dataclass(frozen=True, slots=True)
class Sketch:
    """One design space of a task.

    Example: ``Sketch(index=0, open_decisions=(...), steps=("tile:SSRSRS", "block0"))``.
    """

    index: int
    open_decisions: tuple[OpenDecision, ...]
    steps: tuple[str, ...] = ()
    """Words of the language that distinguish the sketches of a task."""

    limits: tuple[FactorLimit | MemoryLimit, ...] = ()
    """Limits of the hardware on several decisions, each of which may be legal alone."""

    def allows(self, decisions: Sequence[Sequence[int]]) -> bool:
        """Whether complete decisions keep to all limits."""
        return all(limit.allows(decisions) for limit in self.limits)
