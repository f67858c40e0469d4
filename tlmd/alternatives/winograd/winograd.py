"""Winograd's minimal filtering as a program: a 3 x 3 convolution of stride 1 -> the same, faster.

The convolution's block in a fused program is replaced; what is fused to it stays. The blocks are
named, so that the sketches find them: rows of the transformed tiles (`ROWS`), tiles (`TILES`),
products summed over the channels (`PRODUCTS`), rows of the output tiles (`SUMS`), outputs.

A 3-D convolution is a sum of 2-D ones over its planes: the products are summed over the planes and
the channels, so one transformation of the tiles of a plane serves all planes of the output.
Products of a grouped convolution are summed over the channels of a block of groups (`groups`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from tlmd.alternatives import groups
from tlmd.alternatives.alternative import PER_WEIGHT, DirectProgram, Implementation
from tlmd.alternatives.combinations import Matrix, row_of
from tlmd.alternatives.contraction import DTYPE, Contraction, shape_of, with_constants
from tlmd.alternatives.expressions import axis, long, same
from tlmd.alternatives.groups import Blocks
from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.winograd.winograd_tiles import Planes, arranged

PAD, ROWS, TILES, PRODUCTS, SUMS, OUTPUTS, PLACED = (
    f"winograd_{stage}"
    for stage in ("pad", "rows", "tiles", "products", "sums", "outputs", "placed")
)
_PER_WIDTH = 3  # operations of a multiply-add loop: an element of a tile, by the tile's width


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


def winograd(filtering: Filtering, direct: DirectProgram) -> Implementation | None:
    """Winograd's program; None where `direct` is no such convolution with constant weights.

    The channels must be a multiple of a vector.
    """
    contraction = with_constants(direct.module["main"], direct.constants)
    if contraction is None or not _is_convolution(contraction):
        return None
    lanes = direct.unit.lanes
    blocks = _blocks(contraction, lanes)
    *planes, height, width, outputs = shape_of(contraction.output)
    *taps, _, _, inputs, _ = shape_of(contraction.weights.source)
    channels = shape_of(contraction.data.source)[-1]
    if blocks is None or channels % lanes or outputs % lanes:
        return None
    tiles = math.prod(planes) * -(-height // filtering.outputs) * -(-width // filtering.outputs)
    positions = filtering.inputs**2
    products = positions * math.prod(taps) * inputs * outputs
    flops = 2.0 * tiles * products
    elements = tiles * positions * (channels + outputs)
    # Zeros that the direct program has, too, are not counted: where they make the products
    # several times as many, the tiles are a smaller part of the whole.
    per_element = _PER_WIDTH * filtering.inputs / (blocks.groups // blocks.zeros)
    work = (flops + PER_WEIGHT * products) * blocks.zeros + per_element * elements
    stages = _stages(contraction, blocks, filtering, direct.unit)
    return Implementation(contraction.replaced(direct.module, stages), flops, work)


def _is_convolution(contraction: Contraction) -> bool:
    """Whether it is ``out[n, y, x, o] += data[n, y + i, x + j, ...] * weights[i, j, c, o]``.

    Or that of a 3-D convolution, with ``z`` in the output, ``z + k`` in the data, ``k`` in the
    weights.
    """
    spatial, reduction = contraction.spatial, contraction.reduction
    if (len(spatial), len(reduction)) not in ((4, 3), (5, 4)):
        return False
    n, *z, y, x, o = spatial
    *k, i, j, c = reduction
    along = [plane + tap for plane, tap in zip(z, k, strict=True)]
    matches = same(contraction.data.indices[:-1], (n, *along, y + i, x + j))
    matches = matches and same(contraction.weights.indices, (*k, i, j, c, o))
    *taps, rows, columns, _, _ = shape_of(contraction.weights.source)
    images, *planes, height, width, _ = shape_of(contraction.output)
    inner = [plane + tap - 1 for plane, tap in zip(planes, taps, strict=True)]
    fits = shape_of(contraction.data.source)[:-1] == [images, *inner, height + 2, width + 2]
    return matches and fits and (rows, columns) == (3, 3)


def _blocks(contraction: Contraction, lanes: int) -> Blocks | None:
    """The blocks of output channels; None where the channels are read in another way."""
    o, c = contraction.spatial[-1], contraction.reduction[-1]
    if same(contraction.data.indices[-1:], [c]):
        blocks = groups.whole(contraction)
        return blocks if blocks.channels == shape_of(contraction.data.source)[-1] else None
    is_planar = len(contraction.reduction) == 3
    return groups.find(contraction, o, c, lanes) if is_planar else None


def _stages(
    contraction: Contraction, blocks: Blocks, filtering: Filtering, unit: VectorUnit
) -> Any:
    """The function ``(data, weights, output)`` of the convolution in stages."""
    m, a = filtering.outputs, filtering.inputs
    data, output = shape_of(contraction.data.source), shape_of(contraction.output)
    taps = math.prod(shape_of(contraction.weights.source)[:-4])  # planes that an output sums
    images, *_, height, width, channels = output
    inputs = data[-1]
    planes = Planes(images, math.prod(data[1:-3]), math.prod(output[1:-3]))
    rows, columns = -(-height // m), -(-width // m)
    tiles, panel = arranged(planes, rows, columns, blocks, unit)
    source = te.placeholder(long(data), DTYPE, name="data")
    depth = taps * blocks.channels
    shape = long((a, a, channels // panel, depth, panel))
    weights = te.placeholder(shape, DTYPE, name="weights")
    padded = _padded(source, (*data[:-3], rows * m + 2, columns * m + 2, inputs))

    def row(i: Any, j: Any, *at: Any) -> Any:
        (n, h, w), c = tiles.located(at[:-1]), at[-1]
        first = planes.data_indices(n, len(data))
        return row_of(filtering.data, i, lambda k: padded[(*first, h * m + k, w * m + j, c)])

    def stage(name: str, sides: Sequence[int], element: Any) -> Any:
        is_data = name in (ROWS, TILES)
        extents = tiles.of_data() if is_data else tiles.of_output()
        shape = long((*sides, *extents, inputs if is_data else channels))
        names = [*tiles.names(), "c" if is_data else "o"]
        return te.compute(shape, element, name=name, varargs_names=names)

    half = stage(ROWS, (a, a), row)
    whole = stage(
        TILES, (a, a), lambda i, j, *at: row_of(filtering.data, j, lambda k: half[(i, k, *at)])
    )
    summed = axis(depth, "c")

    def product(i: Any, j: Any, *at: Any) -> Any:
        *tile, o = at
        if blocks.is_grouped:
            channel = o // panel * blocks.channels + summed
        else:
            tap, channel = (0, summed) if taps == 1 else (summed // inputs, summed % inputs)
            tile = tiles.read(tile, tap)
        weight = weights[i, j, o // panel, summed, o % panel]
        return te.sum(whole[(i, j, *tile, channel)] * weight, axis=summed)

    products = stage(PRODUCTS, (a, a), product)
    sums = stage(
        SUMS, (m, a), lambda y, j, *at: row_of(filtering.output, y, lambda k: products[(k, j, *at)])
    )
    results = stage(
        OUTPUTS, (m, m), lambda y, x, *at: row_of(filtering.output, x, lambda k: sums[(y, k, *at)])
    )

    def place(*at: Any) -> Any:
        n, *z, h, w, o = at
        tile = tiles.index(planes.of_output(n, z), h // m, w // m)
        return results[(h % m, w % m, *tile, o)]

    placed = te.compute(long(output), place, name=PLACED, varargs_names=_names(len(output), "o"))
    return te.create_prim_func([source, weights, placed])


def _names(dimensions: int, last: str) -> list[str]:
    """Names of dimensions; which stages have equal ones is part of the id of a task."""
    return ["n", *("z" * (dimensions - 4)), "h", "w", last]


def _padded(source: Any, shape: tuple[int, ...]) -> Any:
    """`source` with zeros after its last row and column, where the tiles reach beyond them."""
    *_, height, width, _ = map(int, source.shape)
    if (height, width) == shape[-3:-1]:
        return source
    zero = tirx.const(0.0, DTYPE)

    def element(*at: Any) -> Any:
        *_, h, w, _ = at
        return tirx.if_then_else(tirx.all(h < height, w < width), source[at], zero)

    return te.compute(long(shape), element, name=PAD, varargs_names=_names(len(shape), "c"))
