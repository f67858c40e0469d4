"""Functions that are no tasks: of open shapes, and those that divide integers by any values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.onnx_models import node, onnx_model
from tlmd.data.model_spec import ModelSpec
from tlmd.lowering import acceptance
from tlmd.space.hardware import target as targets

WHOLE = np.array([7, -7, 9], np.int64)


def accepted(path: Path) -> acceptance.Accepted:
    return acceptance.accept(ModelSpec(str(path)), targets.resolve("native", 1))


@pytest.mark.parametrize(
    ("operator", "constant", "tasks"), [("Div", False, 0), ("Mod", False, 0), ("Div", True, 1)]
)
def test_integers_are_divided_without_a_zero(
    operator: str, constant: bool, tasks: int, tmp_path: Path
) -> None:
    divisor = {"b": np.array(3, np.int64)} if constant else {}
    inputs = {"a": WHOLE} | ({} if constant else {"b": WHOLE})
    path = tmp_path / "divide.onnx"
    onnx.save(onnx_model(node(operator, "a b"), inputs, divisor), path)
    found = accepted(path)
    assert found.error == 0.0 and found.models[0].is_whole
    assert len(found.tasks) == tasks
    if not constant:
        assert [info.low for info in found.models[0].source.inputs] == [1, 1]


def test_a_size_that_depends_on_data_is_no_task(tmp_path: Path) -> None:
    nodes = [node("Tanh", "x", "h"), node("NonZero", "h", "y")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2, None])
    graph = helper.make_graph(nodes, "g", [x], [y])
    path = tmp_path / "nonzero.onnx"
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
    found = accepted(path)
    assert found.error == 0.0
    assert [task.name for task in found.tasks] == ["fast_tanh"]
