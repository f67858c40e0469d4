"""Strassen's algorithm as a program: a GEMM with constant weights -> the same, by fewer products.

V. Strassen, "Gaussian Elimination is not Optimal" (Numerische Mathematik 13, 1969): matrices in
2 x 2 parts need seven products of parts instead of eight. The sums of the weights are made at
compile time. The blocks are named, so that the sketches find
them: sums of parts of the data (`SUMS`), products of these and the weights (`PRODUCTS`), the parts
of the output (`COMBINED`), and what is written (`PLACED`).

Neighbouring rows and panels of columns belong to different parts, so that a tile of the output
needs only one tile of each product.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx

from tlmd.alternatives import contraction
from tlmd.alternatives.combinations import row_of
from tlmd.alternatives.contraction import (
    DTYPE,
    Contraction,
    axis,
    clamped,
    flattened,
    long,
    shape_of,
    substituted,
    unflattened,
)
from tlmd.alternatives.implementation import PER_WEIGHT, DirectProgram, Implementation
from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.strassen.multiplications import Multiplication

SUMS, PRODUCTS, COMBINED, PLACED = (
    f"strassen_{stage}" for stage in ("sums", "products", "combined", "placed")
)
_LEAST_ROWS = 5  # of a part
_PER_ELEMENT = 14  # operations of a multiply-add loop: to make and read a sum of two elements


def strassen(by: Multiplication, direct: DirectProgram) -> Implementation | None:
    """Strassen's program; None where `direct` is no GEMM, and where this is not less work.

    Its weights are an argument ``[products, panels, K / parts, columns]`` at the same position.
    A convolution of 1 x 1 is a GEMM, too.
    """
    found = contraction.with_constants(direct.module["main"], direct.constants)
    if found is None or not _is_gemm(found):
        return None
    *outer, columns = shape_of(found.output)
    rows, depth = math.prod(outer), shape_of(found.weights.source)[-2]
    is_divided = depth % by.parts == columns % (by.parts * direct.unit.lanes) == 0
    if not is_divided or rows < _LEAST_ROWS * by.parts:
        return None
    flops = direct.flops * by.products / by.parts**3
    per_part = by.products / by.parts**2
    elements = per_part * rows * (depth + columns)
    work = flops + per_part * PER_WEIGHT * depth * columns + _PER_ELEMENT * elements
    if work >= direct.work:
        return None
    module = contraction.replaced(direct.module, found, _stages(found, by, direct.unit))
    return Implementation(module, flops, work)


def _is_gemm(found: Contraction) -> bool:
    """Whether it is ``out[..., n] += data[..., k] * weights[..., k, n]``, without a window."""
    column, summed = found.spatial[-1], found.reduction[-1]
    *outer, last = found.data.indices
    is_along: bool = last.same_as(summed)
    has_no_window = math.prod(shape_of(found.weights.source)[:-2]) == 1
    reads = (contraction.uses(index, one) for index in outer for one in (column, summed))
    return is_along and has_no_window and not any(reads)


def _stages(found: Contraction, by: Multiplication, unit: VectorUnit) -> Any:
    """The function ``(data, weights, output)`` of the GEMM in stages."""
    spatial, reduction, parts = found.spatial, found.reduction, by.parts
    *outer, columns = shape_of(found.output)
    rows, inner = math.prod(outer), shape_of(found.weights.source)[-2] // parts
    part, width = unit.divided(-(-rows // parts), columns // parts)
    panels = columns // (parts * width)
    data = te.placeholder(long(shape_of(found.data.source)), DTYPE, name="data")
    weights = te.placeholder(long((by.products, panels, inner, width)), DTYPE, name="weights")

    def element(index: Any, r: Any, k: Any) -> Any:
        """Of the part with this index, in row `r` and column `k`."""
        of_row, of_column = divmod(int(index.value), parts)
        row = clamped(r * parts + of_row, rows, parts * part)
        taps = [tirx.const(0, "int64")] * (len(reduction) - 1)
        at = [*unflattened(row, outer), *taps, k + of_column * inner]
        values = list(zip([*spatial[:-1], *reduction], at, strict=True))
        return data[tuple(substituted(index, values) for index in found.data.indices)]

    sums = te.compute(
        long((by.products, part, inner)),
        lambda s, r, k: row_of(by.data, s, lambda index: element(index, r, k)),
        name=SUMS,
    )
    summed = axis(inner, "k")
    products = te.compute(
        long((by.products, part, panels, width)),
        lambda s, r, p, c: te.sum(sums[s, r, summed] * weights[s, p, summed, c], axis=summed),
        name=PRODUCTS,
    )

    def combined(row: Any, column: Any) -> Any:
        index = row % parts * parts + column // width % parts
        at = row // parts, column // (parts * width), column % width
        return row_of(by.output, index, lambda s: products[s, *at])

    whole = te.compute(long((parts * part, columns)), combined, name=COMBINED)
    placed = te.compute(
        long((*outer, columns)),
        lambda *at: whole[flattened(at[:-1], outer), at[-1]],
        name=PLACED,
    )
    return te.create_prim_func([data, weights, placed])
