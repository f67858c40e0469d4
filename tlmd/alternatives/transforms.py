"""How the weights of an alternative are made from those of the direct program, in numpy.

The minimal filtering algorithms and their matrices are those of Lavin and Gray, "Fast Algorithms
for Convolutional Neural Networks" (CVPR 2016), section 4; the multiplication of matrices is
Strassen's (Numerische Mathematik 13, 1969).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tlmd.alternatives.amx.tile_rows import TileRows, tile_rows

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Filtering:
    """The matrices of F(m x m, 3 x 3); a tile of the input has ``(m + 2)**2`` elements.

    ``output = A^T [(G w G^T) * (B^T d B)] A`` for a 3 x 3 filter `w` and a tile `d`.
    """

    data: Matrix
    """B^T, ``[m + 2, m + 2]``."""

    weights: Matrix
    """G, ``[m + 2, 3]``."""

    output: Matrix
    """A^T, ``[m, m + 2]``."""

    @property
    def outputs(self) -> int:
        """m: outputs of a tile in each direction."""
        return len(self.output)

    @property
    def inputs(self) -> int:
        """m + 2: inputs of a tile in each direction."""
        return len(self.data)


def _matrix(*rows: tuple[float, ...]) -> Matrix:
    return np.array(rows, np.float64)


FILTERINGS = {
    "winograd2": Filtering(
        _matrix((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        _matrix((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
        _matrix((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    "winograd4": Filtering(
        _matrix(
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        _matrix(
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        _matrix((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    ),
}
"""By the name of the alternative."""


@dataclass(frozen=True)
class Multiplication:
    """An algorithm for the product of two matrices in ``parts x parts`` parts each.

    ``output = C [(A data) * (B weights)]``, where data, weights and output are lists of parts, row
    by row, and ``*`` multiplies matrices one by one.
    """

    data: Matrix
    """A, ``[products, parts**2]``."""

    weights: Matrix
    """B, ``[products, parts**2]``."""

    output: Matrix
    """C, ``[parts**2, products]``."""

    @property
    def products(self) -> int:
        return len(self.data)

    @property
    def parts(self) -> int:
        """Parts of a matrix in each direction."""
        return math.isqrt(len(self.output))


MULTIPLICATIONS = {
    "strassen2": Multiplication(
        _matrix(
            (1, 0, 0, 1),
            (0, 0, 1, 1),
            (1, 0, 0, 0),
            (0, 0, 0, 1),
            (1, 1, 0, 0),
            (-1, 0, 1, 0),
            (0, 1, 0, -1),
        ),
        _matrix(
            (1, 0, 0, 1),
            (1, 0, 0, 0),
            (0, 1, 0, -1),
            (-1, 0, 1, 0),
            (0, 0, 0, 1),
            (1, 1, 0, 0),
            (0, 0, 1, 1),
        ),
        _matrix(
            (1, 0, 0, 1, -1, 0, 1),
            (0, 0, 1, 0, 1, 0, 0),
            (0, 1, 0, 1, 0, 0, 0),
            (1, -1, 1, 0, 0, 1, 0),
        ),
    ),
}
"""By the name of the alternative. In 4 x 4 parts, by applying it twice, programs read three times
the weights and take LLVM seconds; with weights from memory none was the fastest of its group."""

PAIRS_OF_A_ROW, BYTES_OF_A_ROW = 16, 64
"""Of a tile of the matrix unit."""
PACKED, PACKED_BF16, PACKED_INT8, ATTENTION_BF16 = "packed", "paired_bf16", "packed_int8", "bf16"
AMX_BF16, AMX_PARTS, AMX_INT8 = "amx_bf16", "amx_bf16x3", "amx_int8"
BY_MATRIX_UNIT = (AMX_BF16, AMX_PARTS, AMX_INT8)
PARTS = "bf16x3"
"""Instead of a dtype: float32 numbers as two bfloat16 parts, so three products for one."""
NEIGHBOURS_BF16 = "packed_bf16"
"""Programs of earlier versions, whose pairs are neighbours."""
MULTIPLIED = {
    **dict.fromkeys((PACKED_BF16, NEIGHBOURS_BF16, ATTENTION_BF16, AMX_BF16), "bfloat16"),
    **dict.fromkeys((PACKED_INT8, AMX_INT8), "int8"),
    AMX_PARTS: PARTS,
}
"""By the name of an alternative, the dtype of what it multiplies, where that is a shorter one."""


def transform(alternative: str, weights: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The weights of an alternative, of this shape; but for words of the dtype of `weights`.

    Winograd: ``[3, 3, inputs, outputs]`` become ``[m + 2, m + 2, panels, inputs, columns]``,
    computed in float64; of a 3-D convolution ``[planes, 3, 3, inputs, outputs]`` become ``[m + 2,
    m + 2, panels, planes * inputs, columns]``, of a grouped one ``[m + 2, m + 2, blocks, channels,
    columns]``.

    Packed: ``[..., N]`` become ``[panels, K, columns]`` with zeros after column `N`, after the
    last channel, and between the groups of a block (`groups`); in bfloat16 ``[panels, K / 2,
    columns]`` of pairs as `uint32`, of a channel and the one after half of the channels; in int8
    ``[panels, K / 4, columns]`` of four neighbours.

    For the matrix unit: ``[..., C, N]`` become ``[panels, K, parts, columns]`` of such pairs, the
    second part of what rounding to the first one leaves, or of four neighbours, as they lie in rows
    of tiles (`tile_rows`).

    Strassen: ``[..., K, N]`` become ``[products, panels, K / parts, columns]``, the sums of parts,
    computed in float64. A row of parts is ``K / parts`` neighbouring rows; of the columns, panels
    belong to the columns of parts in turn.
    """
    if alternative in MULTIPLICATIONS:
        return _summed(MULTIPLICATIONS[alternative], weights, *shape[1:])
    if alternative == PACKED:
        return _packed(weights, *shape)
    if alternative in (PACKED_BF16, NEIGHBOURS_BF16):
        panels, pairs, columns = shape
        short = _packed(weights, panels, 2 * pairs, columns).astype(ml_dtypes.bfloat16)
        taps = math.prod(weights.shape[:-2]) if alternative == PACKED_BF16 else pairs
        halves = short.view(np.uint16).astype(np.uint32).reshape(panels, taps, 2, -1, columns)
        found = halves[:, :, 0] | halves[:, :, 1] << np.uint32(16)
        return np.ascontiguousarray(found.reshape(shape))
    if alternative in (AMX_BF16, AMX_PARTS):
        return _in_parts(weights, *shape)
    if alternative == AMX_INT8:
        return _in_quads(weights, *shape)
    if alternative == PACKED_INT8:
        panels, quads, columns = shape
        numbers = _packed(weights, panels, 4 * quads, columns).reshape(panels, quads, 4, columns)
        together = np.ascontiguousarray(numbers.transpose(0, 1, 3, 2))
        return together.view(np.uint32).reshape(shape)
    g, (depth, columns) = FILTERINGS[alternative].weights, shape[-2:]
    panels = math.prod(shape[2:-2])  # tasks of earlier versions have no panels
    planes = math.prod(weights.shape[:-4])
    packed = _packed(weights, panels, 9 * depth, columns)
    windows = packed.reshape(panels, planes, 3, 3, depth // planes, columns).astype(np.float64)
    found = np.einsum("ai,bj,pkijco->abpkco", g, g, windows, optimize=True)
    return np.ascontiguousarray(found.reshape(shape).astype(weights.dtype))


def _in_rows(numbers: NDArray[Any], rows: TileRows) -> NDArray[Any]:
    """Numbers ``[segments, elements, ...]`` as ``[elements, ...]`` of whole rows of tiles.

    Where a row begins before the rest of a segment, what it has twice is zero in it.
    """
    segments, count, *others = numbers.shape
    if rows.is_run:
        found = numbers.reshape(segments * count, *others)
        return _widened(found, 0, rows.elements)
    whole = count // rows.of_a_row * rows.of_a_row
    zeros = np.zeros((segments, rows.apart - count, *others), numbers.dtype)
    found = np.concatenate([numbers[:, :whole], zeros, numbers[:, whole:]], axis=1)
    return found.reshape(rows.elements, *others)


def _widened(numbers: NDArray[Any], axis: int, extent: int) -> NDArray[Any]:
    """The numbers with zeros after them along an axis, which then has this extent."""
    missing = [(0, extent - n if place == axis else 0) for place, n in enumerate(numbers.shape)]
    return np.pad(numbers, missing)


def _in_parts(
    weights: NDArray[Any], panels: int, depth: int, parts: int, columns: int
) -> NDArray[Any]:
    rows, width = tile_rows(weights.shape, PAIRS_OF_A_ROW, 2), weights.shape[-1]
    assert rows is not None
    runs = _widened(weights.reshape(rows.segments, rows.numbers, width), 1, 2 * rows.count)
    halves = runs.reshape(rows.segments, 2, rows.count, width).transpose(0, 2, 1, 3)
    numbers = _widened(_in_rows(halves, rows), 2, panels * columns)
    found = []
    for _ in range(parts):
        short = numbers.astype(ml_dtypes.bfloat16)
        bits = short.view(np.uint16).astype(np.uint32)
        found.append(bits[:, 0] | bits[:, 1] << np.uint32(16))
        numbers = numbers - short.astype(weights.dtype)
    together = np.stack([one.reshape(depth, panels, columns) for one in found], axis=2)
    return np.ascontiguousarray(together.transpose(1, 0, 2, 3))


def _in_quads(
    weights: NDArray[Any], panels: int, depth: int, parts: int, columns: int
) -> NDArray[Any]:
    rows, width = tile_rows(weights.shape, BYTES_OF_A_ROW, 1), weights.shape[-1]
    assert rows is not None
    runs = _widened(weights.reshape(rows.segments, rows.numbers, width), 1, rows.count)
    numbers = _widened(_in_rows(runs, rows), 1, panels * columns)
    quads = numbers.reshape(depth, 4, panels, columns).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(quads).view(np.uint32).reshape(panels, depth, parts, columns)


def _summed(
    by: Multiplication, weights: NDArray[Any], panels: int, depth: int, columns: int
) -> NDArray[Any]:
    parts = weights.reshape(by.parts, depth, panels, by.parts, columns).astype(np.float64)
    listed = parts.transpose(0, 3, 2, 1, 4).reshape(by.parts**2, panels, depth, columns)
    sums = np.einsum("sq,qpkc->spkc", by.weights, listed, optimize=True)
    return np.ascontiguousarray(sums.astype(weights.dtype))


def _packed(weights: NDArray[Any], panels: int, depth: int, columns: int) -> NDArray[Any]:
    groups = depth // math.prod(weights.shape[:-1])
    matrix = _block_diagonal(weights, groups, columns // groups)
    taps = math.prod(weights.shape[:-2])
    missing = depth // taps - matrix.shape[-2], panels * columns - matrix.shape[-1]
    matrix = matrix.reshape(taps, *matrix.shape[-2:])
    matrix = np.pad(matrix, ((0, 0), *((0, extent) for extent in missing)))
    return np.ascontiguousarray(matrix.reshape(depth, panels, columns).transpose(1, 0, 2))


def _block_diagonal(weights: NDArray[Any], groups: int, outputs: int) -> NDArray[Any]:
    """``[..., I, N]`` as ``[..., groups * I, N]``: zeros between the groups of a block.

    `outputs`: columns of a group.
    """
    if groups == 1:
        return weights
    *outer, inputs, columns = weights.shape
    found = np.zeros((*outer, groups, inputs, columns), weights.dtype)
    for column in range(columns):
        found[..., column // outputs % groups, :, column] = weights[..., column]
    return found.reshape(*outer, groups * inputs, columns)
