"""Inputs, poison, tolerances and the reference files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlmd.measure.server.verify import (
    Argument,
    ReferenceStore,
    compare,
    make_input,
    poison,
    tolerance,
    widen,
)

DTYPES = ["float64", "float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_deterministic_and_in_range(dtype: str) -> None:
    argument = Argument((7, 33), dtype, True, False)
    one = make_input("task", 0, argument, positive=False)
    assert one.dtype == argument.numpy_dtype and one.shape == (7, 33)
    assert one.tobytes() == make_input("task", 0, argument, positive=False).tobytes()
    assert one.tobytes() != make_input("task", 1, argument, positive=False).tobytes()
    assert one.tobytes() != make_input("other", 0, argument, positive=False).tobytes()
    wide = one.astype(np.float64)
    if argument.is_float:
        assert wide.min() < 0 and np.abs(wide).max() <= 1
        assert make_input("task", 0, argument, positive=True).astype(np.float64).min() >= 0.5
    elif dtype in ("int32", "int64", "bool"):
        assert set(np.unique(wide)) == {0, 1}


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_poison_is_never_a_result(dtype: str) -> None:
    argument = Argument((64,), dtype, False, True)
    got = widen(poison(argument))
    want = widen(make_input("task", 0, argument, positive=False))
    ok, _ = compare(got, want, dtype, 1)
    assert not ok


@given(st.sampled_from(["float32", "float64", "float16"]), st.integers(1, 1 << 22))
def test_tolerance_grows_with_the_reduction_but_stays_small(dtype: str, length: int) -> None:
    value = tolerance(dtype, length)
    assert tolerance(dtype, 1) <= value <= 0.25
    assert tolerance(dtype, length + 1) >= value


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([16, 512, 4096]))
def test_another_order_of_summation_is_not_an_error(seed: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    terms = rng.uniform(-1, 1, (8, length)).astype(np.float32)
    terms *= rng.uniform(-1, 1, (8, length)).astype(np.float32)
    one = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1]  # strictly in sequence
    other = np.cumsum(terms[:, rng.permutation(length)], axis=1, dtype=np.float32)[:, -1]
    ok, worst = compare(one, other, "float32", length)
    assert ok, worst


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([16, 512]), st.integers(0, 7))
def test_a_sum_that_lacks_a_tile_is_an_error(seed: int, length: int, row: int) -> None:
    rng = np.random.default_rng(seed)
    terms = rng.uniform(0.1, 1, (8, length)).astype(np.float32)
    want = terms.sum(axis=1)
    got = want.copy()
    got[row] = terms[row, length // 16 :].sum()
    assert not compare(got, want, "float32", length)[0]


def test_integers_are_exact_unless_rounded_from_floats() -> None:
    want = np.arange(10, dtype=np.int8)
    got = want.copy()
    got[3] += 1
    assert compare(want, want, "int8", 100) == (True, 0)
    assert compare(got, want, "int8", 100) == (False, 1)
    assert compare(got, want, "int8", 100, rounded=True) == (True, 1)
    got[3] += 1
    assert not compare(got, want, "int8", 100, rounded=True)[0]
    extremes = np.array([127, -128], dtype=np.int8)
    assert compare(extremes, extremes[::-1], "int8", 1) == (False, 255)


def test_a_few_outputs_may_be_a_step_away_where_floats_are_rounded() -> None:
    rng = np.random.default_rng(0)
    want = np.round(rng.normal(0, 40, 10000)).astype(np.float32)
    got = want.copy()
    got[:5] += 1
    assert not compare(got, want, "float32", 100)[0]
    assert compare(got, want, "float32", 100, steps=True) == (True, 1)
    got[5:100] += 1
    assert not compare(got, want, "float32", 100, steps=True)[0]
    far = want.copy()
    far[0] += 1000
    assert not compare(far, want, "float32", 100, steps=True)[0]


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_must_be_at_the_same_places(special: float) -> None:
    want = np.linspace(-1, 1, 9, dtype=np.float32)
    bad = want.copy()
    bad[4] = special
    assert compare(bad, bad, "float32", 1)[0]
    assert compare(bad, want, "float32", 1) == (False, math.inf)
    assert not compare(want, bad, "float32", 1)[0]
    assert not compare(-bad, bad, "float32", 1)[0]


def test_shapes_and_empty_outputs() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert compare(empty, empty, "float32", 1) == (True, 0.0)
    assert not compare(np.zeros(3, np.float32), np.zeros(4, np.float32), "float32", 1)[0]
    zero = np.zeros(4, np.float32)
    assert compare(zero, zero, "float32", 1)[0]
    assert not compare(zero + 1e-9, zero, "float32", 1)[0], "zero has no room for rounding"


def test_references_come_back_and_damaged_ones_go(tmp_path: Path) -> None:
    store = ReferenceStore(tmp_path)
    outputs: list[np.ndarray[Any, np.dtype[Any]]] = [
        np.arange(3000, dtype=np.float32).reshape(3, 1000),
        np.array(3, dtype=np.float32),
        make_input("t", 0, Argument((5,), "bfloat16", True, False), positive=False),
    ]
    assert store.get("t") is None and not store.has("t")
    store.put("t", outputs, positive=True)
    store.put("t", outputs[:1], positive=False)  # the first one stays
    found = store.get("t")
    assert found is not None and found.positive and store.positive("t")
    for got, want in zip(found.outputs, outputs, strict=True):
        assert np.array_equal(got, want.astype(np.float32))
    (next(tmp_path.glob("**/0.npy"))).write_bytes(b"\x93NUMPY")
    assert store.get("t") is None and not store.has("t")


def test_old_references_make_room(tmp_path: Path) -> None:
    store = ReferenceStore(tmp_path, limit_bytes=10_000)
    for index in range(4):
        store.put(f"t{index}", [np.zeros(1000, np.float32)], positive=False)
    store.prune()
    assert sum(store.has(f"t{index}") for index in range(4)) == 2
