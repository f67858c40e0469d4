"""Parts of a product are read where they are: the operand that is found has the same elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tlmd.lowering.passes.columns import View, columns_of
from tlmd.lowering.passes.reshapes import static_shape

extents = st.integers(1, 4)


def found_view(steps: list[Any], shape: tuple[int, ...], order: str) -> View | None:
    """What is found of the last of `steps`, which are applied to a matrix of this shape in turn."""
    matrix = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [matrix]):
        value: Any = matrix
        for step in steps:
            value = builder.emit(step(value))
        builder.emit_func_output(value)
    values = relax.analysis.get_var2val(builder.get()["main"])

    def value_of(expr: Any) -> Any:
        while isinstance(expr, relax.Var) and expr in values:
            expr = values[expr]
        return expr

    return columns_of(value, order, value_of)


@settings(deadline=None, max_examples=60)
@given(
    images=extents,
    heads=extents,
    rows=extents,
    parts=st.integers(2, 4),
    rows_first=st.booleans(),
    parts_inside=st.booleans(),
    by=st.sampled_from(["take", "slice", "split"]),
    transposed=st.booleans(),
    data=st.data(),
)
def test_what_is_found_has_the_elements_of_the_part(
    images: int,
    heads: int,
    rows: int,
    parts: int,
    rows_first: bool,
    parts_inside: bool,
    by: str,
    transposed: bool,
    data: st.DataObject,
) -> None:
    depth, index = 5, data.draw(st.integers(0, parts - 1))
    outer = (rows, images) if rows_first else (images, rows)
    inner = (heads, parts) if parts_inside else (parts, heads)
    shape = (images * rows, parts * heads * depth)
    axis = 3 if parts_inside else 2
    places = np.arange(np.prod(shape)).reshape(*outer, *inner, depth)
    part = np.take(places, index, axis)  # outer, heads, depth
    axes = (1, 2, 0, 3) if rows_first else (0, 2, 1, 3)
    want = part.transpose(axes)
    steps: list[Any] = [lambda x: relax.op.reshape(x, (*outer, *inner, depth))]
    if by == "take":
        steps.append(lambda x: relax.op.take(x, relax.const(index, "int64"), axis))
    elif by == "slice":
        steps.append(lambda x: relax.op.strided_slice(x, [axis], [index], [index + 1]))
    else:
        steps += [
            lambda x: relax.op.split(x, parts, axis),
            lambda x: relax.TupleGetItem(x, index),
        ]
    steps += [
        lambda x: relax.op.reshape(x, part.shape),
        lambda x: relax.op.multiply(x, relax.const(0.5, "float32")),
        lambda x: relax.op.permute_dims(x, axes),
    ]
    if transposed:
        steps.append(lambda x: relax.op.permute_dims(x, (0, 1, 3, 2)))
    view = found_view(steps, shape, "BHDL" if transposed else "BHLD")
    assert view is not None and view.factor == 0.5
    operand = view.operand
    assert static_shape(view.variable) == shape
    assert [operand.size(letter) for letter in "BHLD"] == list(want.shape)
    b, h, i, d = np.ogrid[:images, :heads, :rows, :depth]
    matrix = places.reshape(operand.shape)
    assert np.array_equal(operand.read(matrix, B=b, H=h, L=i, D=d), want)


def test_what_is_no_part_of_a_matrix_is_not_found() -> None:
    def heads_of(width: int) -> Any:
        return lambda x: relax.op.reshape(x, (1, 6, 2, width))

    def half(x: Any) -> Any:
        return relax.op.strided_slice(x, [1], [0], [8])

    def every_second_row(x: Any) -> Any:
        return relax.op.strided_slice(x, [0], [0], [12], [2])

    def mixed(x: Any) -> Any:
        return relax.op.permute_dims(x, (0, 3, 1, 2))

    wide = relax.op.permute_dims
    assert found_view([heads_of(8)], (6, 16), "BHLD") is None  # all of it
    assert found_view([every_second_row, heads_of(8)], (12, 16), "BHLD") is None  # of the rows
    assert found_view([half, heads_of(4), mixed], (6, 16), "BHLD") is None  # elements are not last
    good = [half, heads_of(4), lambda x: wide(x, (0, 2, 1, 3))]
    view = found_view(good, (6, 16), "BHLD")
    assert view is not None and (view.operand.first, view.operand.heads) == (0, 2)
