"""ONNX operators that TVM imports wrongly or lacks, rewritten: the outputs of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.onnx_models import check_import, node, onnx_model, operators, rewritten

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


def test_operators_that_tvm_imports_rightly_stay() -> None:
    for made, inputs, constants in [
        (node("Resize", "x _ z"), {"x": X}, {"z": np.asarray([1, 1, 2, 2], np.float32)}),
        (node("ArgMax", "x"), {"x": X}, {}),
        (node("MaxPool", "x", kernel_shape=[2, 2]), {"x": X}, {}),
    ]:
        assert operators(rewritten(onnx_model(made, inputs, constants))) == {made.op_type}
