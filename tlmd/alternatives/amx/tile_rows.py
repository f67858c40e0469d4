"""How the numbers that a result needs lie in rows of tiles of the CPU's matrix unit.

The channels of a tap fill whole rows, or the taps in the last dimension of the image and their
channels, which lie one after the other, are one run, and so few numbers lie closer together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tlmd.alternatives.amx.amx_code import EDGE
from tlmd.alternatives.kernel import multiple

PAIRS_OF_A_ROW, BYTES_OF_A_ROW = 16, 64  # of a tile
_MOST_FILLED = 1.5  # numbers in the rows of a tap over numbers that are needed
_MOST_TILES, _SMALL = 1.08, (2, 3, 5, 7)  # tiles over the least tiles; their prime factors
_VECTOR = 4
"""Elements that are copied together: runs begin at a multiple."""


@dataclass(frozen=True)
class TileRows:
    """Segments of elements, each of a tap or of a run; an element is a number, or a pair."""

    segments: int
    numbers: int
    """Numbers that a segment needs."""

    count: int
    """Elements of a segment."""

    apart: int
    """Elements from the first one of a segment to that of the next one."""

    elements: int
    """Elements in all, whole rows of tiles; those after the segments repeat the last one."""

    is_run: bool

    of_a_row: int
    """Elements of a row of a tile."""


def tile_rows(shape: Sequence[int], of_a_row: int, of_an_element: int) -> TileRows | None:
    """The rows for weights of this shape ``[taps..., channels, columns]``; None where none fit.

    `of_a_row`: elements of a row of a tile; `of_an_element`: 1, or 2 numbers of a pair.
    """
    *taps, channels, _ = shape
    count = channels // of_an_element
    apart = multiple(count, of_a_row)
    if count * of_an_element == channels and of_a_row <= count and apart <= _MOST_FILLED * count:
        segments = math.prod(taps)
        return TileRows(segments, channels, count, apart, segments * apart, False, of_a_row)
    if not taps:
        return None
    *outer, inner = taps
    numbers, segments = inner * channels, math.prod(outer)
    apart = multiple(-(-numbers // of_an_element), _VECTOR)
    elements = multiple(segments * apart, of_a_row)
    return TileRows(segments, numbers, apart, apart, elements, True, of_a_row)


def padded_rows(rows: int) -> int:
    """Rows of whole tiles; of a few tiles more where these then are pairs that blocks can share.

    A kernel of two rows of tiles and two columns loads fewer tiles than one of one row and four.
    """
    least = -(-rows // EDGE)
    counts = range(least, int(least * _MOST_TILES) + 1)
    shared = (count for count in counts if count % 2 == 0 and _is_smooth(count))
    return EDGE * next(shared, least)


def _is_smooth(number: int) -> bool:
    """Whether its prime factors are small."""
    for factor in _SMALL:
        while number % factor == 0:
            number //= factor
    return number == 1
