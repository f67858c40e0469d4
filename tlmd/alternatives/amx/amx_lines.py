"""The matrix of a convolution of few channels for the CPU's matrix unit.

The taps in the last dimension of the image and their channels lie one after the other in a line of
the padded image, so a row of the matrix is made of runs of lines, which are only copied.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import sym, te, tirx

from tlmd.alternatives.amx.amx_numbers import Numbers
from tlmd.alternatives.amx.tile_rows import TileRows, padded_rows
from tlmd.alternatives.contraction import Contraction, shape_of
from tlmd.alternatives.expressions import clamped, long, unflattened, uses

LINES = "amx_lines"
VECTOR = "tlmd.vector"
"""The attribute of the matrix: elements that are copied together."""


def are_runs(contraction: Contraction) -> bool:
    """Whether the numbers of the taps in the last dimension of the image are neighbours."""
    if len(contraction.reduction) < 2:
        return False
    *before, index, _ = contraction.data.indices
    tap = contraction.reduction[-2]
    linear = sym.detect_linear_equation(index, [contraction.spatial[-2], tap])
    is_next = len(linear) == 3 and int(linear[1]) == 1 and int(linear[2]) == 0
    return is_next and not any(uses(one, tap) for one in before)


def matrix(contraction: Contraction, kind: Numbers, rows: TileRows, data: Any, name: str) -> Any:
    """The matrix ``[rows, parts, elements]``, of the data."""
    outer = shape_of(contraction.output)[:-1]
    taps = shape_of(contraction.weights.source)[:-3]
    *image, width, channels = shape_of(contraction.data.source)
    index, pixel = contraction.data.indices[-2], contraction.spatial[-2]
    stride, *_ = sym.detect_linear_equation(index, [pixel])
    of_a_run = kind.of_an_element * rows.count
    length = max(width * channels, (outer[-1] - 1) * int(stride) * channels + of_a_run)
    lines = te.compute(long((*image, length)), lambda *at: _number(data, length, *at), name=LINES)
    count = math.prod(outer)
    padded = padded_rows(count)

    def element(row: Any, part: Any, place: Any) -> Any:
        at = unflattened(clamped(row, count, padded), outer)
        segment = clamped(place // rows.apart, rows.segments, -(-rows.elements // rows.apart))
        tap = unflattened(segment, taps) if taps else []
        line = contraction.data_at(at, tap)[:-2]
        first = at[-1] * int(stride) * channels
        return kind.element(
            lambda number: lines[(*line, first + number)], rows, part, place % rows.apart
        )

    shape = padded, kind.parts, rows.elements
    vector = math.gcd(rows.apart, rows.elements)
    return te.compute(long(shape), element, name=name, attrs={VECTOR: vector})


def _number(data: Any, length: int, *at: Any) -> Any:
    """A number of a line; zero after its end, which only weights of zero meet."""
    *before, place = at
    *_, width, channels = (int(extent) for extent in data.shape)
    number = data[(*before, place // channels, place % channels)]
    if length == width * channels:
        return number
    return tirx.if_then_else(place < width * channels, number, tirx.const(0, data.dtype))
