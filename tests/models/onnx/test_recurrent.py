"""ONNX's LSTM, GRU and RNN, unrolled: the same outputs as those of ONNX Runtime."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tlmd.data.errors import BadInput
from tlmd.lowering import lowering
from tlmd.models.onnx import recurrent
from tlmd.models.onnx.onnx_frontend import read
from tlmd.space.hardware.target import resolve, tvm_target

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, WIDTH, FEATURES = 5, 2, 3, 4
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def network(
    kind: str,
    direction: str = "forward",
    initial: bool = False,
    bias: bool = True,
    opset: int = 14,
    steps: int = STEPS,
    **attributes: Any,
) -> Any:
    """A model of one node with random weights, and an input for it."""
    ways, rows = DIRECTIONS[direction], GATES[kind] * WIDTH
    shapes = {
        "W": (ways, rows, FEATURES),
        "R": (ways, rows, WIDTH),
        "B": (ways, 2 * rows) if bias else None,
        "lengths": None,
        "H": (ways, BATCH, WIDTH) if initial else None,
        "C": (ways, BATCH, WIDTH) if initial and kind == "LSTM" else None,
    }
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal(shape, np.float32), name)
        for name, shape in shapes.items()
        if shape
    ]
    inputs = ["X", *(name if shape else "" for name, shape in shapes.items())]
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    if attributes.pop("lengths", False):
        inputs[4] = "lengths"
        lengths = np.asarray([steps - 2, steps], np.int32)
        weights.append(numpy_helper.from_array(lengths, "lengths"))
    if attributes.pop("peepholes", False):
        inputs += [""] * (7 - len(inputs)) + ["P"]
        values = random.standard_normal((ways, 3 * WIDTH), np.float32)
        weights.append(numpy_helper.from_array(values, "P"))
    while not inputs[-1]:
        inputs.pop()
    node = helper.make_node(
        kind, inputs, outputs, hidden_size=WIDTH, direction=direction, **attributes
    )
    value = helper.make_tensor_value_info
    sequence, state = (steps, ways, BATCH, WIDTH), (ways, BATCH, WIDTH)
    graph = helper.make_graph(
        [node],
        "recurrent",
        [value("X", TensorProto.FLOAT, (steps, BATCH, FEATURES))],
        [
            value(name, TensorProto.FLOAT, shape)
            for name, shape in zip(outputs, (sequence, state, state), strict=False)
        ],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def outputs_of(model: Any) -> list[np.ndarray]:
    x = np.random.default_rng(1).standard_normal((STEPS, BATCH, FEATURES), np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return [np.asarray(value) for value in session.run(None, {"X": x})]


@given(
    st.sampled_from([("LSTM", {}), ("RNN", {}), ("RNN", {"activations": ["Relu"]})])
    | st.sampled_from([("GRU", {"linear_before_reset": late}) for late in (0, 1)]),
    st.sampled_from(list(DIRECTIONS)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([8, 13, 14, 18]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_unrolled_nodes_give_the_outputs_of_onnx_runtime(
    kind: tuple[str, dict[str, Any]], direction: str, initial: bool, bias: bool, opset: int
) -> None:
    attributes = dict(kind[1])
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * DIRECTIONS[direction]
    model = network(kind[0], direction, initial, bias, opset, **attributes)
    changed = copy.deepcopy(model)
    assert recurrent.unroll(changed)
    onnx.checker.check_model(changed)
    assert not {node.op_type for node in changed.graph.node} & set(GATES)
    for value, right in zip(outputs_of(changed), outputs_of(model), strict=True):
        np.testing.assert_allclose(value, right, 1e-4, 1e-5)


@pytest.mark.parametrize("kind", list(GATES))
@pytest.mark.parametrize("direction", list(DIRECTIONS))
@pytest.mark.parametrize("initial", [False, True])
def test_texts_may_end_before_the_last_step(kind: str, direction: str, initial: bool) -> None:
    model = network(kind, direction, initial, lengths=True)
    changed = copy.deepcopy(model)
    assert recurrent.unroll(changed)
    onnx.checker.check_model(changed)
    for value, right in zip(outputs_of(changed), outputs_of(model), strict=True):
        np.testing.assert_allclose(value, right, 1e-4, 1e-5)


@pytest.mark.parametrize("direction", list(DIRECTIONS))
def test_gates_may_look_at_the_cell(direction: str) -> None:
    model = network("LSTM", direction, peepholes=True)
    changed = copy.deepcopy(model)
    assert recurrent.unroll(changed)
    for value, right in zip(outputs_of(changed), outputs_of(model), strict=True):
        np.testing.assert_allclose(value, right, 1e-4, 1e-5)


@pytest.mark.parametrize("kind", list(GATES))
def test_the_batch_may_be_first(kind: str) -> None:
    model = network(kind, "bidirectional")
    other = copy.deepcopy(model)
    other.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
    shapes = [[BATCH, STEPS, FEATURES], [BATCH, STEPS, 2, WIDTH], *[[BATCH, 2, WIDTH]] * 2]
    for value, shape in zip([*other.graph.input, *other.graph.output], shapes, strict=False):
        for dim, extent in zip(value.type.tensor_type.shape.dim, shape, strict=True):
            dim.dim_value = extent
    assert recurrent.unroll(other)
    x = np.random.default_rng(1).standard_normal((STEPS, BATCH, FEATURES), np.float32)
    session = onnxruntime.InferenceSession(other.SerializeToString())
    found = session.run(None, {"X": x.transpose(1, 0, 2)})
    orders = [(2, 0, 1, 3), (1, 0, 2), (1, 0, 2)]
    for value, right, order in zip(found, outputs_of(model), orders, strict=False):
        np.testing.assert_allclose(np.asarray(value), right.transpose(order), 1e-4, 1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"clip": 1.0},
        {"activations": ["Sigmoid", "Tanh", "Relu"]},
        {"input_forget": 1},
        {"steps": 65},
    ],
)
def test_what_is_not_usual_stays_and_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    model = network("LSTM", **change)
    before = model.SerializeToString()
    assert not recurrent.unroll(model) and model.SerializeToString() == before
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path))
    with pytest.raises(BadInput, match="LSTM") as caught:
        read(path, None).imported()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", list(GATES))
def test_a_recurrent_network_is_lowered(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(network(kind, "bidirectional", initial=True), str(path))
    source = read(path, None).imported()
    target = tvm_target(resolve("native"))
    compiled = lowering.compile_model(lowering.lower(source.module, target), target)
    (x,) = source.random_inputs(0)
    machine = relax.VirtualMachine(compiled.executable, tvm.cpu())
    assert source.reference is not None
    for value, right in zip(
        machine["main"](tvm.runtime.tensor(x)), source.reference(x), strict=True
    ):
        np.testing.assert_allclose(value.numpy(), right, 1e-4, 1e-5)
