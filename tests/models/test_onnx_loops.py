"""ONNX's Loop and Scan, written out: the outputs of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models import check_import, node, onnx_model, operators, rewritten

X = np.random.default_rng(0).standard_normal((4, 3), np.float32)
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
value = helper.make_tensor_value_info


def loop(condition: str = "Identity") -> Any:
    """A loop that adds an input of the graph to its state, and shows what it was."""
    body = helper.make_graph(
        [
            node("Add", "s x", "t"),
            node("Mul", "t two", "so"),
            node(condition, "going", "on"),
            node("Cast", "step", "i", to=FLOAT),
            node("Add", "s i", "seen"),
        ],
        "body",
        [value("step", INT, []), value("going", BOOL, []), value("s", FLOAT, [4, 3])],
        [value("on", BOOL, []), value("so", FLOAT, [4, 3]), value("seen", FLOAT, [4, 3])],
        [numpy_helper.from_array(np.float32(2), "two")],
    )
    return node("Loop", "n c z", "y all", body=body)


CONSTANTS = {"n": np.asarray(3), "c": np.asarray(True), "z": X * 2}


@pytest.mark.parametrize("opset", [11, 17])
def test_a_loop_of_known_length_is_written_out(opset: int) -> None:
    check_import(onnx_model(loop(), {"x": X}, CONSTANTS, "y all", opset), {"x": X})


def test_a_loop_that_may_end_earlier_stays() -> None:
    model = onnx_model(loop("Not"), {"x": X}, CONSTANTS, "y all")
    assert "Loop" in operators(rewritten(model))


def test_a_scan_is_written_out() -> None:
    body = helper.make_graph(
        [node("Add", "s e", "so"), node("Relu", "so", "seen")],
        "body",
        [value("s", FLOAT, [3]), value("e", FLOAT, [3])],
        [value("so", FLOAT, [3]), value("seen", FLOAT, [3])],
    )
    made = node("Scan", "z x", "y all", body=body, num_scan_inputs=1)
    check_import(onnx_model(made, {"x": X}, {"z": X[0]}, "y all"), {"x": X})
