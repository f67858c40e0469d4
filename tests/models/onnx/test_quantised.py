"""Quantised ONNX operators, rewritten: the outputs of ONNX Runtime, up to a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.onnx_models import MICROSOFT, check_import, node, onnx_model

RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.integers(0, 255, (1, 2, 6, 6)).astype(np.uint8)
MATRIX = RANDOM.integers(0, 255, (5, 8)).astype(np.uint8)
FLOATS = RANDOM.standard_normal((5, 8), np.float32)
# Of seven bits, because ONNX Runtime overflows on CPUs that do not multiply bytes.
KERNEL = RANDOM.integers(-60, 60, (3, 2, 3, 3)).astype(np.int8)
WEIGHTS = RANDOM.integers(-60, 60, (8, 4)).astype(np.int8)
STEP, CHANNELS = np.float32(0.02), np.asarray([0.01, 0.02, 0.015], np.float32)
X = {"xs": STEP, "xz": np.uint8(120)}
Y = {"ys": np.float32(0.4), "yz": np.uint8(120)}
W = {"w": KERNEL, "ws": CHANNELS, "wz": np.zeros(3, np.int8)}
B = {"w": WEIGHTS, "ws": np.asarray([0.01], np.float32), "wz": np.asarray([3], np.int8)}
BIAS = {"b": RANDOM.integers(-900, 900, 3).astype(np.int32)}
INT4 = helper.make_tensor("w", TensorProto.INT4, [8, 4], RANDOM.integers(-8, 8, 32).tolist())
BLOCKS = np.abs(RANDOM.standard_normal((2, 4), np.float32))


def own(operator: str, inputs: str, **attributes: Any) -> Any:
    """An operator of ONNX Runtime's own."""
    return node(operator, inputs, domain=MICROSOFT, **attributes)


CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "convolution": (
        node("QLinearConv", "x xs xz w ws wz ys yz b", pads=[1, 1, 1, 1]),
        {"x": IMAGE},
        X | W | Y | BIAS,
    ),
    "product": (node("QLinearMatMul", "x xs xz w ws wz ys yz"), {"x": MATRIX}, X | B | Y),
    "integer convolution": (node("ConvInteger", "x w xz"), {"x": IMAGE}, X | W),
    "sum": (
        own("QLinearAdd", "x xs xz z xs xz ys yz"),
        {"x": MATRIX, "z": MATRIX[:1]},
        X | Y,
    ),
    "sigmoid": (
        own("QLinearSigmoid", "x xs xz zs zz"),
        {"x": MATRIX},
        X | {"zs": np.float32(1 / 256), "zz": np.uint8(0)},
    ),
    "concat": (
        own("QLinearConcat", "ys yz x xs xz x ys yz", axis=1),
        {"x": MATRIX},
        X | Y,
    ),
    "average": (own("QLinearGlobalAveragePool", "x xs xz ys yz"), {"x": IMAGE}, X | Y),
    "gemm": (
        own("QGemm", "x xs xz w ws wz b ys yz", transB=1),
        {"x": MATRIX},
        X | Y | BIAS | {"w": WEIGHTS.T[:3], "ws": CHANNELS, "wz": W["wz"]},
    ),
    "gemm to floats": (own("QGemm", "x xs xz w ws wz"), {"x": MATRIX}, X | B),
    "product to floats": (
        own("MatMulIntegerToFloat", "x w xs ws xz wz b"),
        {"x": MATRIX},
        X | B | {"b": FLOATS[0, :4]},
    ),
    "dynamic product": (own("DynamicQuantizeMatMul", "x w ws wz"), {"x": FLOATS}, B),
    "packed product": (
        own("MatMulNBits", "x w s", K=40, N=3, block_size=16, bits=4),
        {"x": RANDOM.standard_normal((2, 40), np.float32)},
        {"w": RANDOM.integers(0, 255, (3, 3, 8)).astype(np.uint8), "s": np.tile(CHANNELS, 3)},
    ),
    "packed product with zero points": (
        own("MatMulNBits", "x w s z", K=32, N=3, block_size=16, bits=4),
        {"x": RANDOM.standard_normal((2, 32), np.float32)},
        {
            "w": RANDOM.integers(0, 255, (3, 2, 8)).astype(np.uint8),
            "s": np.tile(CHANNELS, 2),
            "z": np.asarray([0x74, 0x58, 0x93], np.uint8),
        },
    ),
}


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("opset", [12, 17])
def test_quantised_operators_give_the_outputs_of_onnx_runtime(name: str, opset: int) -> None:
    made, inputs, constants = CASES[name]
    check_import(onnx_model(made, inputs, constants, opset=opset), inputs, 1e-3, 1e-3, steps=1)


@pytest.mark.parametrize("four_bits", [False, True])
@pytest.mark.parametrize("block", [0, 4])
def test_weights_may_have_four_bits_and_scales_of_blocks(four_bits: bool, block: int) -> None:
    made = [
        node("DequantizeLinear", "w s", "d", axis=0 if block else 1, block_size=block),
        node("MatMul", "x d"),
    ]
    constants = {"w": INT4 if four_bits else WEIGHTS, "s": BLOCKS if block else BLOCKS[0]}
    check_import(onnx_model(made, {"x": FLOATS}, constants, opset=21), {"x": FLOATS})
