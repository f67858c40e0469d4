"""Packed weights: which rows and columns are padded, and where each weight lies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlmd.alternatives.kernel import VectorUnit, padded_rows, panel_vectors
from tlmd.alternatives.weights import packed
from tlmd.space.hardware.target import resolve, tvm_target, vector_unit


@given(st.integers(1, 5000))
def test_rows_are_padded_to_what_a_kernel_divides(rows: int) -> None:
    padded = padded_rows(rows)
    assert rows <= padded <= max(rows + 4, 1.02 * rows)
    assert rows < 5 or any(padded % kernel == 0 for kernel in (5, 6, 8))


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 50), st.integers(1, 3))
def test_packed_weights_are_the_columns_of_each_panel(
    lanes: int, depth: int, columns: int, vectors: int
) -> None:
    width = lanes * vectors
    panels = -(-columns // width)
    weights = np.arange(1, depth * columns + 1, dtype="float32").reshape(1, depth, columns)
    got = packed(weights, (panels, depth, width))
    for column in range(panels * width):
        want = weights[0, :, column] if column < columns else 0
        assert (got[column // width, :, column % width] == want).all()


@given(*[st.integers(1, 4)] * 5)
def test_outputs_read_the_inputs_of_their_own_group(
    together: int, blocks: int, inputs: int, outputs: int, taps: int
) -> None:
    width = together * outputs
    numbers = np.arange(1, taps * inputs * blocks * width + 1, dtype="float32")
    weights = numbers.reshape(taps, inputs, blocks * width)
    depth = taps * together * inputs
    got = packed(weights, (blocks, depth, width)).reshape(blocks, taps, -1, width)
    for block, column in np.ndindex(blocks, width):
        own = slice(first := column // outputs * inputs, first + inputs)
        assert (got[block, :, own, column] == weights[..., block * width + column]).all()
        assert np.count_nonzero(got[block, ..., column]) == taps * inputs


@given(st.integers(1, 400))
def test_panels_waste_little(vectors: int) -> None:
    width = panel_vectors(vectors)
    padded = -(-vectors // width) * width
    assert 1 <= width <= 4 and padded <= max(vectors + 1, 1.4 * vectors)


@given(st.integers(1, 5000), st.integers(1, 400), st.sampled_from([4, 8]))
def test_kernels_of_sixteen_registers_fit_and_waste_little(
    rows: int, vectors: int, lanes: int
) -> None:
    padded, panel = VectorUnit(lanes, registers=16).kernels.pad_both(rows, vectors * lanes)
    width = panel // lanes
    assert rows <= padded < rows + 8 and panel % lanes == 0
    if rows >= 4:
        assert any(padded % height == 0 and height * width <= 12 for height in (4, 5, 6, 8))
        waste = padded * -(-vectors // width) * width / (rows * vectors)
        assert waste <= 1.25 or rows < 16 or vectors < 8


@given(st.integers(5, 5000), st.integers(1, 400), st.sampled_from([16, 32]))
def test_divided_columns_are_never_too_many(rows: int, vectors: int, registers: int) -> None:
    padded, panel = VectorUnit(8, registers).kernels.pad_rows(rows, vectors * 8)
    assert vectors * 8 % panel == 0 and rows <= padded <= max(rows + 8, 1.02 * rows)


@given(st.integers(1, 500), st.integers(1, 4), st.sampled_from([16, 32]))
def test_kernels_that_divide_the_rows_fit_the_registers(
    rows: int, vectors: int, registers: int
) -> None:
    height = VectorUnit(8, registers).kernels.dividing_rows(rows, vectors)
    if height is not None:
        assert rows % height == 0 and height >= 4 and height * vectors <= registers - 4
    elif registers == 32:
        assert all(rows % every for every in range(5, 28 // vectors + 1) if every < 15)


@pytest.mark.parametrize(
    ("target", "unit"),
    [
        ('{"kind":"llvm","mcpu":"haswell"}', VectorUnit(8, 16)),
        ('{"kind":"llvm","mcpu":"znver5"}', VectorUnit(16, 32)),
        ('{"kind":"llvm","mtriple":"aarch64-linux-gnu"}', VectorUnit(4, 32)),
    ],
)
def test_only_avx512_and_arm_have_many_registers(target: str, unit: VectorUnit) -> None:
    assert vector_unit(tvm_target(resolve(target))) == unit
