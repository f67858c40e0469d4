"""The part of its operands that a block touches while its iterators take some values."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tlmd.data.computation import Access, Block

Numbers = NDArray[np.float64]
ALIGNED = 16  # floats of the widest vector


def operands(block: Block, count: int) -> list[Access | None]:
    """The result, then reads: those that are contiguous along the result's rows come first.

    There are always `count`; None stands for one that the block does not have.
    """
    last = last_iterator(block)

    def key(access: Access) -> tuple[bool, int]:
        along_rows = bool(access.dims) and any(i == last for i, _ in access.dims[-1])
        return not along_rows, -len(used(access))

    accesses: list[Access | None] = [*block.writes[:1], *sorted(block.reads, key=key)]
    return (accesses + [None] * count)[:count]


def last_iterator(block: Block, kind: str = "S") -> int:
    """The iterator of the contiguous dimension of the result; for "R" the last reduction."""
    of_kind = [i for i, (k, _) in enumerate(block.iters) if k == kind]
    if kind == "S" and block.writes:
        for dim in reversed(block.writes[0].dims):
            for iterator, _ in dim:
                if iterator in of_kind and block.iters[iterator][1] > 1:
                    return iterator
    return of_kind[-1] if of_kind else 0


def volume(block: Block) -> int:
    """How often the block is computed; an unknown extent counts once."""
    return math.prod(max(extent, 1) for _, extent in block.iters)


def used(access: Access) -> set[int]:
    """The iterators on which an access depends."""
    return {iterator for dim in access.dims for iterator, _ in dim}


def elements(access: Access, sizes: dict[int, Numbers]) -> Numbers:
    """How many elements are touched while each iterator takes ``sizes[iterator]`` values in a row.

    Sizes are arrays ``[candidates]``, and so is the result.
    """
    product: Numbers = np.ones(1)
    for dim in access.dims:
        product = product * _extent(dim, sizes)
    return product


def contiguous(access: Access, sizes: dict[int, Numbers]) -> Numbers:
    """The same of the last dimension alone."""
    return _extent(access.dims[-1], sizes) if access.dims else np.ones(1)


def _extent(dim: tuple[tuple[int, int], ...], sizes: dict[int, Numbers]) -> Numbers:
    extent: Numbers = np.ones(1)
    for iterator, stride in dim:
        if stride == 0:  # not a sum of strided iterators: at most all combinations
            extent = extent * sizes[iterator]
        else:
            extent = extent + (sizes[iterator] - 1) * abs(stride)
    return extent
