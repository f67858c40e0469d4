"""Winograd's minimal filtering as a program: a 3 x 3 convolution of stride 1 -> the same, faster.

The convolution's block in a fused program is replaced; what is fused to it stays. The blocks are
named, so that the sketches find them: rows of the transformed tiles (`ROWS`), tiles (`TILES`),
products summed over the channels (`PRODUCTS`), rows of the output tiles (`SUMS`), outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from tlmd.alternatives import contraction
from tlmd.alternatives.contraction import DTYPE, Contraction, axis, long, same, shape_of
from tlmd.alternatives.implementation import (
    PER_ELEMENT,
    PER_WEIGHT,
    REDUCTION,
    SPATIAL,
    Implementation,
)
from tlmd.alternatives.transforms import FILTERINGS, Filtering, Matrix

PAD, ROWS, TILES, PRODUCTS, SUMS, OUTPUTS, PLACED = (
    f"winograd_{stage}"
    for stage in ("pad", "rows", "tiles", "products", "sums", "outputs", "placed")
)


def winograd(direct: Implementation, lanes: int) -> list[Implementation]:
    """Winograd's programs; none where `direct` is no such convolution.

    Their weights are an argument ``[m + 2, m + 2, CI, CO]`` at the same position.
    `lanes`: elements of a vector of the target; the channels must be a multiple of it.
    """
    found = contraction.find(direct.module["main"])
    if found is None or not _is_convolution(found):
        return []
    images, height, width, outputs = shape_of(found.output)
    inputs = shape_of(found.weights.source)[2]
    if inputs % lanes or outputs % lanes:
        return []
    listed = []
    for name, filtering in FILTERINGS.items():
        tiles = images * -(-height // filtering.outputs) * -(-width // filtering.outputs)
        positions = filtering.inputs**2
        products = positions * inputs * outputs
        flops = 2.0 * tiles * products
        elements = tiles * positions * (inputs + outputs)
        work = flops + PER_WEIGHT * products + PER_ELEMENT * elements
        module = _filtered(direct.module, found, filtering)
        listed.append(Implementation(name, module, flops, work))
    return listed


def _filtered(module: Any, found: Contraction, filtering: Filtering) -> Any:
    stages = _stages(shape_of(found.data.source), shape_of(found.output), filtering)
    return contraction.replaced(module, found, stages)


def _is_convolution(found: Contraction) -> bool:
    """Whether it is ``out[n, y, x, o] += data[n, y + i, x + j, c] * weights[i, j, c, o]``."""
    if [int(i.iter_type) for i in found.iterators] != [SPATIAL] * 4 + [REDUCTION] * 3:
        return False
    n, y, x, o, i, j, c = (iterator.var for iterator in found.iterators)
    matches = same(found.data.indices, (n, y + i, x + j, c))
    matches = matches and same(found.weights.indices, (i, j, c, o))
    rows, columns, inputs, _ = shape_of(found.weights.source)
    images, height, width, _ = shape_of(found.output)
    fits = shape_of(found.data.source) == [images, height + 2, width + 2, inputs]
    return matches and fits and (rows, columns) == (3, 3)


def _stages(data: Sequence[int], output: Sequence[int], filtering: Filtering) -> Any:
    """The function ``(data, weights, output)`` of the convolution in stages."""
    m, a = filtering.outputs, filtering.inputs
    images, height, width, channels = output
    rows, columns = -(-height // m), -(-width // m)
    tiles = (images, rows, columns)
    source = te.placeholder(long(data), DTYPE, name="data")
    weights = te.placeholder(long((a, a, data[3], channels)), DTYPE, name="weights")
    padded = _padded(source, (images, rows * m + 2, columns * m + 2, data[3]))
    half = te.compute(
        long((a, a, *tiles, data[3])),
        lambda i, j, n, h, w, c: _row(
            filtering.data, i, lambda k: padded[n, h * m + k, w * m + j, c]
        ),
        name=ROWS,
    )
    whole = te.compute(
        long((a, a, *tiles, data[3])),
        lambda i, j, n, h, w, c: _row(filtering.data, j, lambda k: half[i, k, n, h, w, c]),
        name=TILES,
    )
    channel = axis(data[3], "c")
    products = te.compute(
        long((a, a, *tiles, channels)),
        lambda i, j, n, h, w, o: te.sum(
            whole[i, j, n, h, w, channel] * weights[i, j, channel, o], axis=channel
        ),
        name=PRODUCTS,
    )
    sums = te.compute(
        long((m, a, *tiles, channels)),
        lambda y, j, n, h, w, o: _row(filtering.output, y, lambda k: products[k, j, n, h, w, o]),
        name=SUMS,
    )
    results = te.compute(
        long((m, m, *tiles, channels)),
        lambda y, x, n, h, w, o: _row(filtering.output, x, lambda k: sums[y, k, n, h, w, o]),
        name=OUTPUTS,
    )
    placed = te.compute(
        long(output),
        lambda n, h, w, o: results[h % m, w % m, n, h // m, w // m, o],
        name=PLACED,
    )
    return te.create_prim_func([source, weights, placed])


def _padded(source: Any, shape: tuple[int, ...]) -> Any:
    """`source` with zeros after its last row and column, where the tiles reach beyond them."""
    _, height, width, _ = map(int, source.shape)
    if (height, width) == shape[1:3]:
        return source
    zero = tirx.const(0.0, DTYPE)
    return te.compute(
        long(shape),
        lambda n, h, w, c: tirx.if_then_else(
            tirx.all(h < height, w < width), source[n, h, w, c], zero
        ),
        name=PAD,
    )


def _row(matrix: Matrix, row: Any, term: Callable[[Any], Any]) -> Any:
    """Row `row` of `matrix` times the terms. `row` becomes a constant when its loop is unrolled."""
    sums = [_sum(coefficients, term) for coefficients in matrix.tolist()]
    found = sums[-1]
    for index in reversed(range(len(sums) - 1)):
        found = tirx.Select(row == index, sums[index], found)
    return found


def _sum(coefficients: Sequence[float], term: Callable[[Any], Any]) -> Any:
    """The sum of the terms times their coefficients, without products by 1 and 0."""
    found = None
    for index, coefficient in enumerate(coefficients):
        if coefficient == 0:
            continue
        size = abs(coefficient)
        value = term(tirx.const(index, "int64"))
        value = value if size == 1 else value * tirx.const(size, DTYPE)
        if found is None:
            found = value if coefficient > 0 else tirx.const(0.0, DTYPE) - value
        else:
            found = found + value if coefficient > 0 else found - value
    return found
