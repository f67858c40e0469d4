"""The weights of programs for the matrix unit, made from those of the direct program in numpy.

They are words ``[panels, K, parts, columns]`` as they lie in rows of tiles (`tile_rows`), made
from ``[..., channels, N]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlmd.alternatives.amx.tile_rows import BYTES_OF_A_ROW, PAIRS_OF_A_ROW, TileRows, tile_rows
from tlmd.alternatives.words import word_arrays


def pairs(weights: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.uint32]:
    """Pairs of a channel and the one after half of the channels, in bfloat16.

    The second one of two parts is what rounding to the first one leaves.
    """
    panels, depth, parts, columns = shape
    rows, runs = _runs(weights, PAIRS_OF_A_ROW, 2)
    halves = runs.reshape(rows.segments, 2, rows.count, -1).transpose(0, 2, 1, 3)
    numbers = _widened(_in_rows(halves, rows), 2, panels * columns)
    of_parts = []
    for _ in range(parts):
        short = word_arrays.rounded(numbers)
        of_parts.append(word_arrays.pairs(short[:, 0], short[:, 1]))
        numbers = numbers - short.astype(weights.dtype)
    words = np.stack([part.reshape(depth, panels, columns) for part in of_parts], axis=2)
    return np.ascontiguousarray(words.transpose(1, 0, 2, 3))


def quads(weights: NDArray[np.int8], shape: tuple[int, ...]) -> NDArray[np.uint32]:
    """Words of four neighbouring channels."""
    panels, depth, _, columns = shape
    rows, runs = _runs(weights, BYTES_OF_A_ROW, 1)
    numbers = _widened(_in_rows(runs, rows), 1, panels * columns)
    of_panels = numbers.reshape(depth, 4, panels, columns).transpose(2, 0, 3, 1)
    return word_arrays.quads(of_panels).reshape(shape)


def _runs(
    weights: NDArray[Any], of_a_row: int, of_an_element: int
) -> tuple[TileRows, NDArray[Any]]:
    """How the weights lie in rows of tiles, and the numbers ``[segments, numbers, N]`` of them."""
    rows = tile_rows(weights.shape, of_a_row, of_an_element)
    assert rows is not None
    runs = weights.reshape(rows.segments, rows.numbers, weights.shape[-1])
    return rows, _widened(runs, 1, of_an_element * rows.count)


def _in_rows(numbers: NDArray[Any], rows: TileRows) -> NDArray[Any]:
    """Numbers ``[segments, elements, ...]`` as ``[elements, ...]`` of whole rows of tiles.

    Where a row begins before the rest of a segment, what it has twice is zero in it.
    """
    segments, count, *others = numbers.shape
    if rows.is_run:
        return _widened(numbers.reshape(segments * count, *others), 0, rows.elements)
    whole = count // rows.of_a_row * rows.of_a_row
    zeros = np.zeros((segments, rows.apart - count, *others), numbers.dtype)
    filled = np.concatenate([numbers[:, :whole], zeros, numbers[:, whole:]], axis=1)
    return filled.reshape(rows.elements, *others)


def _widened(numbers: NDArray[Any], axis: int, extent: int) -> NDArray[Any]:
    """The numbers with zeros after them along an axis, which then has this extent."""
    missing = [(0, extent - n if place == axis else 0) for place, n in enumerate(numbers.shape)]
    return np.pad(numbers, missing)
