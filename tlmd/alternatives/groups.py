"""Blocks of groups: how a grouped convolution becomes one GEMM for each block of its columns.

A group is often narrower than a vector. A block has as many groups as fill a vector, and its GEMM
reads the data of all of them: the weights between an output and the data of another group of its
block are zero. That is more work, but by whole vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tlmd.alternatives.contraction import Contraction, shape_of
from tlmd.alternatives.expressions import long, same


@dataclass(frozen=True)
class Blocks:
    """The columns of a GEMM in blocks, each with its own part of the data's last dimension."""

    count: int
    columns: int
    """Columns of the output in a block."""

    channels: int
    """Elements of the data's last dimension that a block reads."""

    groups: int
    """Groups of a block."""

    @property
    def is_grouped(self) -> bool:
        """Whether an output reads only a part of the data's last dimension."""
        return self.count * self.groups > 1

    @property
    def zeros(self) -> int:
        """How many times as many products as the direct program computes, because of zeros.

        The direct program of narrow groups uses only a small part of its vectors, so it is no
        better. That of a depthwise convolution uses all of them.
        """
        is_depthwise = self.channels == self.columns == self.groups
        return self.groups if is_depthwise else 1


def whole(contraction: Contraction) -> Blocks:
    """One block: each column reads all of the data's last dimension."""
    return Blocks(1, shape_of(contraction.output)[-1], shape_of(contraction.weights.source)[-2], 1)


def find(contraction: Contraction, column: Any, innermost: Any, lanes: int) -> Blocks | None:
    """The blocks of a grouped convolution; None for anything else, and for groups that do not fit.

    `column`, `innermost`: the variables of the output's last dimension and of the innermost sum.
    A group's columns must divide `lanes`, the elements of a vector, or be a multiple of it.
    """
    columns, inputs = shape_of(contraction.output)[-1], shape_of(contraction.weights.source)[-2]
    groups = shape_of(contraction.data.source)[-1] // inputs
    if groups < 2 or columns % groups:
        return None
    outputs = columns // groups
    per_group, needed = long((outputs, inputs))
    first = tirx.floordiv(column, per_group) * needed
    if not same(contraction.data.indices[-1:], [first + innermost]):
        return None
    together = max(1, lanes // outputs)
    block = outputs * together
    if block % lanes or groups % together:
        return None
    return Blocks(groups // together, block, inputs * together, together)
