"""ONNX operators that TVM imports wrongly or lacks, rewritten: the outputs of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.onnx_models import (
    check_import,
    node,
    onnx_model,
    operators,
    rewritten,
    run_in_onnx_runtime,
)

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 3, 8, 7), np.float32)
INTEGERS = RANDOM.integers(-5, 6, (2, 5))
BYTES = RANDOM.integers(0, 255, (2, 5)).astype(np.uint8)
FLAGS = RANDOM.integers(0, 2, (2, 5)).astype(bool)
SAME: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}
CHANNELS = {
    name: np.abs(RANDOM.standard_normal(3, np.float32)) for name in ("s", "b", "mean", "var")
}

CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "SAME_LOWER": (node("MaxPool", "x", **SAME), {"x": X}, {}),
    "average SAME_LOWER": (node("AveragePool", "x", count_include_pad=1, **SAME), {"x": X}, {}),
    "ArgMax of bytes": (node("ArgMax", "x", axis=1), {"x": BYTES}, {}),
    "ArgMin of bytes": (node("ArgMin", "x", axis=0, select_last_index=1), {"x": BYTES}, {}),
    "Equal of booleans": (node("Equal", "x z"), {"x": FLAGS, "z": ~FLAGS}, {}),
    "Pow of integers": (
        node("Pow", "x z"),
        {"x": INTEGERS, "z": np.abs(INTEGERS.T[:1])[..., :1]},
        {},
    ),
    "cube of integers": (node("Pow", "x z"), {"x": INTEGERS}, {"z": np.asarray(3)}),
    "Pow with an integer": (node("Pow", "x z"), {"x": X}, {"z": np.asarray(3, np.int32)}),
    "integers to a float": (
        node("Pow", "x z"),
        {"x": np.abs(INTEGERS)},
        {"z": np.asarray(1.5, np.float32)},
    ),
    "ReverseSequence": (
        node("ReverseSequence", "x z", time_axis=1, batch_axis=0),
        {"x": X, "z": np.asarray([1, 3])},
        {},
    ),
    "ScatterElements": (
        node("ScatterElements", "x i u", axis=1, reduction="add"),
        {"x": X[0, 0], "u": X[1, 0, :, :3]},
        {"i": RANDOM.integers(-7, 7, (8, 3))},
    ),
    "Trilu": (node("Trilu", "x k", upper=0), {"x": X}, {"k": np.asarray(-1)}),
    "an axis behind an Identity": (
        [node("Identity", "a", "b"), node("CumSum", "x b")],
        {"x": X},
        {"a": np.asarray(2)},
    ),
    "a number behind an Identity": (
        [node("Identity", "a", "b"), node("TopK", "x b", "y i", axis=1)],
        {"x": X},
        {"a": np.asarray([2])},
    ),
    "LayerNormalization": (
        node("LayerNormalization", "x s b", axis=1),
        {"x": X},
        {"s": X[0, 0, 0], "b": X[0, :, :1, :1]},
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_operators_give_the_outputs_of_onnx_runtime(name: str) -> None:
    made, inputs, constants = CASES[name]
    check_import(onnx_model(made, inputs, constants), inputs)


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 3], "strides": [2, 2]},
        {"kernel_shape": [3, 2], "dilations": [2, 1], "pads": [2, 0, 1, 1], "ceil_mode": 1},
    ],
)
def test_pools_give_the_places_of_maxima(attributes: dict[str, Any]) -> None:
    made = node("MaxPool", "x", "y places", **attributes)
    check_import(onnx_model(made, {"x": X}, outputs="y places"), {"x": X})


def test_a_batch_norm_in_training_uses_the_statistics_of_the_batch() -> None:
    made = node("BatchNormalization", "x s b mean var", "y m v", training_mode=1, momentum=0.7)
    check_import(onnx_model(made, {"x": X}, CHANNELS, "y m v"), {"x": X})


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_groups_are_normalised_by_scales_of_groups_or_channels(opset: int, dtype: Any) -> None:
    count = 6 if opset == 21 else 3
    x = RANDOM.standard_normal((2, 6, 4, 5)).astype(dtype)
    constants = {name: RANDOM.standard_normal(count).astype(dtype) for name in ("s", "b")}
    made = node("GroupNormalization", "x s b", num_groups=3)
    exact = 1e-4 if dtype == np.float32 else 1e-2
    model = onnx_model(made, {"x": x}, constants, opset=opset)
    (want,), (got,) = (run_in_onnx_runtime(m, {"x": x}) for m in (model, rewritten(model)))
    np.testing.assert_allclose(got, want, exact, exact)
    if opset == 21:
        check_import(model, {"x": x}, exact, exact)


def test_operators_that_tvm_imports_rightly_stay() -> None:
    for made, inputs, constants in [
        (node("Resize", "x _ z"), {"x": X}, {"z": np.asarray([1, 1, 2, 2], np.float32)}),
        (node("ArgMax", "x"), {"x": X}, {}),
        (node("MaxPool", "x", kernel_shape=[2, 2]), {"x": X}, {}),
    ]:
        assert operators(rewritten(onnx_model(made, inputs, constants))) == {made.op_type}
