"""The alternatives for the matrix unit: bfloat16, two bfloat16 parts of float32, int8."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlmd.alternatives import weights as arrays
from tlmd.alternatives.alternative import Alternative, DirectProgram, Implementation
from tlmd.alternatives.amx import (
    amx_attention,
    amx_attention_sketches,
    amx_grid,
    amx_grid_sketches,
    amx_packed,
    amx_sketches,
)
from tlmd.alternatives.amx.amx import FEATURES
from tlmd.alternatives.amx.amx_code import BF16, INT8, PARTS
from tlmd.alternatives.amx.amx_numbers import Numbers
from tlmd.alternatives.amx.tile_rows import BYTES_OF_A_ROW, PAIRS_OF_A_ROW, tile_rows
from tlmd.alternatives.weights import Shape


def _program(direct: DirectProgram, kind: Numbers) -> Implementation | None:
    """The program of attention, of a GEMM or of a convolution."""
    program = amx_attention.unit_attention if direct.attention else amx_packed.packed
    return program(direct, kind)


def in_pairs(weights: NDArray[np.float32], shape: Shape) -> NDArray[np.uint32]:
    """Pairs ``[panels, K, parts, columns]`` of a channel and the one after half of the channels.

    They are bfloat16 numbers as they lie in rows of tiles. The second one of two parts is what
    rounding to the first one leaves.
    """
    panels, depth, parts, columns = shape
    numbers = _widened(_elements(weights, PAIRS_OF_A_ROW, 2), 2, panels * columns)
    of_parts = []
    for _ in range(parts):
        short = arrays.rounded(numbers)
        of_parts.append(arrays.pairs(short[:, 0], short[:, 1]))
        numbers = numbers - short.astype(weights.dtype)
    words = np.stack([part.reshape(depth, panels, columns) for part in of_parts], axis=2)
    return np.ascontiguousarray(words.transpose(1, 0, 2, 3))


def in_quads(weights: NDArray[np.int8], shape: Shape) -> NDArray[np.uint32]:
    """Words ``[panels, K, 1, columns]`` of four neighbouring channels, as in rows of tiles."""
    panels, depth, _, columns = shape
    numbers = _widened(_elements(weights, BYTES_OF_A_ROW, 1), 2, panels * columns)
    of_panels = numbers.reshape(depth, 4, panels, columns).transpose(2, 0, 3, 1)
    return arrays.quads(of_panels).reshape(shape)


def _elements(weights: NDArray[Any], of_a_row: int, size: int) -> NDArray[Any]:
    """Elements ``[elements, size, N]``, of `size` numbers each, as they lie in rows of tiles.

    Where a row begins before the rest of a segment, what it has twice is zero in it.
    """
    rows, columns = tile_rows(weights.shape, of_a_row, size), weights.shape[-1]
    assert rows is not None
    runs = _widened(weights.reshape(rows.segments, rows.numbers, columns), 1, size * rows.count)
    elements = runs.reshape(rows.segments, size, rows.count, columns).transpose(0, 2, 1, 3)
    if rows.is_run:
        return _widened(elements.reshape(-1, size, columns), 0, rows.elements)
    whole = rows.count // of_a_row * of_a_row
    zeros = np.zeros((rows.segments, rows.apart - rows.count, size, columns), weights.dtype)
    parts = [elements[:, :whole], zeros, elements[:, whole:]]
    return np.concatenate(parts, axis=1).reshape(rows.elements, size, columns)


def _widened(numbers: NDArray[Any], axis: int, extent: int) -> NDArray[Any]:
    """The numbers with zeros after them along an axis, which then has this extent."""
    missing = [(0, extent - n if place == axis else 0) for place, n in enumerate(numbers.shape)]
    return np.pad(numbers, missing)


_SKETCHES = {
    amx_packed.PRODUCED: amx_sketches.sketches,
    amx_grid.PRODUCED: amx_grid_sketches.sketches,
    amx_attention.KEYS: amx_attention_sketches.sketches,
}
AMX_BF16 = Alternative(
    "amx_bf16",
    partial(_program, kind=Numbers(BF16, parts=1, work=0.35)),
    in_pairs,
    _SKETCHES,
    exact=False,
    multiplies="bfloat16",
    needs=FEATURES[BF16],
)
AMX_PARTS = replace(
    AMX_BF16,
    name="amx_bf16x3",
    find=partial(_program, kind=Numbers(BF16, parts=2, work=0.65)),
    multiplies=PARTS,
)
AMX_INT8 = Alternative(
    "amx_int8",
    partial(_program, kind=Numbers(INT8, parts=1, work=0.2)),
    in_quads,
    _SKETCHES,
    multiplies="int8",
    needs=FEATURES[INT8],
)
BY_MATRIX_UNIT = (AMX_BF16, AMX_PARTS, AMX_INT8)
