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
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from tlmd.alternatives.alternative import PER_WEIGHT, DirectProgram, Implementation
from tlmd.alternatives.combinations import Matrix, row_of
from tlmd.alternatives.contraction import DTYPE, Contraction, shape_of, with_constants
from tlmd.alternatives.expressions import axis, clamped, flattened, long, unflattened, uses
from tlmd.alternatives.kernel import VectorUnit

SUMS, PRODUCTS, COMBINED, PLACED = (
    f"strassen_{stage}" for stage in ("sums", "products", "combined", "placed")
)
_LEAST_ROWS = 5  # of a part
_PER_ELEMENT = 14  # operations of a multiply-add loop: to make and read a sum of two elements


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


def strassen(by: Multiplication, direct: DirectProgram) -> Implementation | None:
    """Strassen's program; None where `direct` is no GEMM, and where this is not less work.

    A convolution of 1 x 1 is a GEMM, too.
    """
    contraction = with_constants(direct.module["main"], direct.constants)
    if contraction is None or not _is_gemm(contraction):
        return None
    *outer, columns = shape_of(contraction.output)
    rows, depth = math.prod(outer), shape_of(contraction.weights.source)[-2]
    is_divided = depth % by.parts == columns % (by.parts * direct.unit.lanes) == 0
    if not is_divided or rows < _LEAST_ROWS * by.parts:
        return None
    flops = direct.flops * by.products / by.parts**3
    per_part = by.products / by.parts**2
    elements = per_part * rows * (depth + columns)
    work = flops + per_part * PER_WEIGHT * depth * columns + _PER_ELEMENT * elements
    if work >= direct.work:
        return None
    module = contraction.replaced(direct.module, _stages(contraction, by, direct.unit))
    return Implementation(module, flops, work)


def _is_gemm(contraction: Contraction) -> bool:
    """Whether it is ``out[..., n] += data[..., k] * weights[..., k, n]``, without a window."""
    column, summed = contraction.spatial[-1], contraction.reduction[-1]
    *outer, last = contraction.data.indices
    is_along: bool = last.same_as(summed)
    has_no_window = math.prod(shape_of(contraction.weights.source)[:-2]) == 1
    reads = (uses(index, one) for index in outer for one in (column, summed))
    return is_along and has_no_window and not any(reads)


def _stages(contraction: Contraction, by: Multiplication, unit: VectorUnit) -> Any:
    """The function ``(data, weights, output)`` of the GEMM in stages."""
    parts = by.parts
    *outer, columns = shape_of(contraction.output)
    rows, inner = math.prod(outer), shape_of(contraction.weights.source)[-2] // parts
    part, width = unit.kernels.pad_rows(-(-rows // parts), columns // parts)
    panels = columns // (parts * width)
    data = contraction.placeholder()
    weights = te.placeholder(long((by.products, panels, inner, width)), DTYPE, name="weights")

    def element(index: Any, r: Any, k: Any) -> Any:
        """An element of the part with this index, in its row `r` and column `k`."""
        of_row, of_column = divmod(int(index.value), parts)
        row = clamped(r * parts + of_row, rows, parts * part)
        taps = [tirx.const(0, "int64")] * (len(contraction.reduction) - 1)
        terms = [*taps, k + of_column * inner]
        return data[tuple(contraction.data_at(unflattened(row, outer), terms))]

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
        long((*outer, columns)), lambda *at: whole[flattened(at[:-1], outer), at[-1]], name=PLACED
    )
    return te.create_prim_func([data, weights, placed])
