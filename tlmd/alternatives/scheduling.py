"""A schedule of an alternative's program, and the steps that all sketches use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tvm.tirx import IndexMap

from tlmd.alternatives.expressions import SPATIAL, flattened
from tlmd.alternatives.kernel import Kernels, VectorUnit
from tlmd.alternatives.product_loops import IMPORT
from tlmd.alternatives.words.words import Words, register


@dataclass
class StageSchedule:
    """A schedule, and what its steps need to know."""

    schedule: Any
    unit: VectorUnit
    """Vectors of the target."""

    def __post_init__(self) -> None:
        self.names = block_names(self.schedule)

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.unit.lanes

    @property
    def kernels(self) -> Kernels:
        return self.unit.kernels

    def block(self, name: str) -> Any:
        return self.schedule.get_sblock(name)

    def loops(self, name: str, count: int) -> list[Any]:
        """The innermost `count` loops of a block."""
        return list(self.schedule.get_loops(self.block(name)))[-count:]

    def extents(self, block: Any) -> list[int]:
        """Extents of all loops around a block."""
        return [int(self.schedule.get(loop).extent) for loop in self.schedule.get_loops(block)]

    def vectors(self, loop: Any) -> tuple[Any, Any]:
        """Split a loop of channels: the loop over vectors, and the loop over their elements."""
        outer, inner = self.schedule.split(loop, [None, self.lanes])
        return outer, inner

    def kernel(self, unrolled: Iterable[Any], lane: Any) -> None:
        """Unroll the loops of a kernel; its innermost one is a vector."""
        for loop in unrolled:
            self.schedule.unroll(loop)
        self.schedule.vectorize(lane)

    def dot_of_words(self, words: Words, unrolled: Iterable[Any], lane: Any, around: Any) -> None:
        """Unroll a kernel that multiplies words by a dot product; `around` is a loop around it."""
        for loop in unrolled:
            self.schedule.unroll(loop)
        if words.imported:
            self.schedule.annotate(around, IMPORT, words.imported)
        # The postprocessors of TVM separate the zeros and call the intrinsic.
        register(words)
        block = self.schedule.blockize(lane)
        self.schedule.annotate(block, "meta_schedule.auto_tensorize", words.dot)

    def inline_from(self, name: str) -> str:
        """Inline this block and all after it into the last one, whose name is returned."""
        *inlined, last = self.names[self.names.index(name) :]
        for one in inlined:
            self.schedule.compute_inline(self.block(one))
        return last

    def place_rows(self, name: str, at: Any) -> tuple[Any, list[int]]:
        """Inline from this block on, and compute the last block at a loop, by rows and columns.

        Returns the last block, and its extents before.
        """
        last = self.block(self.inline_from(name))
        extents = self.extents(last)

        def row_and_column(*at: Any) -> tuple[Any, Any]:
            return flattened(at[:-1], extents[:-1]), at[-1]

        matrix = IndexMap.from_func(row_and_column, ndim=len(extents), index_dtype="int64")
        self.schedule.transform_block_layout(last, matrix)
        self.schedule.reverse_compute_at(last, at, preserve_unit_loops=True)
        return last, extents

    def tile(self, loop: Any, parts: int, most: int) -> list[Any]:
        """Split a loop by factors that are sampled; the innermost one is at most `most`."""
        factors = self.schedule.sample_perfect_tile(loop, parts, most)
        return list(self.schedule.split(loop, list(factors)))


Sketch = Callable[[StageSchedule], None]
"""Schedules a program; what it leaves open is sampled."""
SketchesOf = Callable[[StageSchedule], list[Sketch]]
"""The sketches of a program."""


def is_spatial(block: Any) -> bool:
    """Whether a block has no sum, maximum or other reduction."""
    return all(int(one.iter_type) == SPATIAL for one in block.iter_vars)


def block_names(schedule: Any) -> list[str]:
    """The names of the blocks, in their order."""
    children = schedule.get_child_blocks(schedule.get_sblock("root"))
    return [str(schedule.get(block).name_hint) for block in children]
