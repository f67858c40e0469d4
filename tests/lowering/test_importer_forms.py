"""Forms that TVM's importers write and its later passes cannot take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec
from tlmd.lowering import acceptance, comparison
from tlmd.space.hardware import target as targets

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
FLOAT = onnx.TensorProto.FLOAT
IMAGE = (1, 3, 8, 8)
RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def convolution() -> Any:
    return helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1])


def save(
    path: Path, nodes: Sequence[Any], constants: dict[str, np.ndarray], opset: int = 17
) -> str:
    given = [helper.make_tensor_value_info("x", FLOAT, IMAGE)]
    result = [helper.make_tensor_value_info("y", FLOAT, None)]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", given, result, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 10
    onnx.save(model, str(path))
    return str(path)


def accepted(name: str) -> acceptance.Accepted:
    return acceptance.accept(ModelSpec(name), targets.resolve("native", 1))


@pytest.mark.parametrize("name", ["Max", "Min", "Sum", "Mean"])
def test_the_extreme_of_several_tensors_behind_a_convolution(name: str, tmp_path: Path) -> None:
    nodes = [convolution(), helper.make_node(name, ["h", "c", "b"], ["y"])]
    constants = {"w": weights(4, 3, 3, 3), "c": weights(), "b": weights(4, 1, 1)}
    result = accepted(save(tmp_path / "model.onnx", nodes, constants))
    assert result.error is not None and result.error < 1e-5 and result.tasks


def test_a_layer_norm_over_three_axes_behind_a_convolution(tmp_path: Path) -> None:
    nodes = [
        convolution(),
        helper.make_node("LayerNormalization", ["h", "scale", "shift"], ["y"], axis=1),
    ]
    shape = (4, 8, 8)
    constants = {"w": weights(4, 3, 3, 3), "scale": weights(*shape), "shift": weights(*shape)}
    result = accepted(save(tmp_path / "model.onnx", nodes, constants))
    assert result.error is not None and result.error < 1e-5 and result.tasks


@pytest.mark.parametrize("opset", [18, 21])
def test_a_group_norm_that_onnx_writes_as_a_function(opset: int, tmp_path: Path) -> None:
    nodes = [
        convolution(),
        helper.make_node("GroupNormalization", ["h", "scale", "shift"], ["y"], num_groups=2),
    ]
    count = 4 if opset >= 21 else 2
    constants = {"w": weights(4, 3, 3, 3), "scale": weights(count), "shift": weights(count)}
    result = accepted(save(tmp_path / "model.onnx", nodes, constants, opset))
    assert result.error is not None and result.error < 1e-5 and result.tasks


def test_the_product_of_two_vectors(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["v"]),
        helper.make_node("MatMul", ["v", "w"], ["y"]),
    ]
    constants = {"w": weights(192), "flat": np.array([-1], np.int64)}
    result = accepted(save(tmp_path / "model.onnx", nodes, constants))
    assert result.error is not None and result.error < 1e-5


def test_a_model_without_tasks_is_accepted(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    result = accepted(save(tmp_path / "model.onnx", nodes, {}))
    assert result.tasks == [] and "no part of it can be tuned" in result.notes[0]


def test_the_dtype_of_an_output_is_compared() -> None:
    value = np.ones(3, np.float32)
    with pytest.raises(BadInput, match="y has dtype float64 instead of float32"):
        comparison.check_output("it", "y", value.astype(np.float64), value)


def test_an_open_dimension_may_be_written_as_minus_one(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx", [helper.make_node("Relu", ["x"], ["y"])], {})
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, path)
    with pytest.raises(BadInput, match=r"open dimensions \(\?,3,8,8\)"):
        accepted(path)
    target = targets.resolve("native", 1)
    assert acceptance.accept(ModelSpec(path, (IMAGE,)), target).error == 0.0


def test_what_onnx_runtime_loads_is_valid(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx", [helper.make_node("Relu", ["x"], ["y"])], {})
    model = onnx.load(path)
    model.graph.name = ""
    onnx.save(model, path)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    assert accepted(path).error == 0.0
