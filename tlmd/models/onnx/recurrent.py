"""Rewriting of ONNX's LSTM, GRU and RNN, which TVM lacks, into one product per step.

A node stays as it is if its sequence is long or of unknown length, or if it has attributes or
inputs that are not the usual ones; the importer then refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmd.models.onnx.node_writer import NodeWriter

if TYPE_CHECKING:
    import onnx

_MOST_STEPS = 64
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {
    "LSTM": (["Sigmoid", "Tanh", "Tanh"],),
    "GRU": (["Sigmoid", "Tanh"],),
    "RNN": (["Tanh"], ["Relu"]),
}
_KNOWN = {
    *("hidden_size", "direction", "layout", "linear_before_reset", "activations"),
    *("input_forget", "clip"),
}
_FIRST_OPSET = 7  # the first in which operators broadcast
_WITH_WHERE = 9


def unroll(model: onnx.ModelProto) -> bool:
    """Replace such nodes in the model. Returns whether there were any to replace."""
    if not any(node.op_type in _GATES for node in model.graph.node):
        return False
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    if opset < _FIRST_OPSET:
        return False
    types, constants = _types(model), _constants(model)
    nodes, changed = [], False
    for node in model.graph.node:
        recurrence = _recurrence(node, types, constants, opset)
        if recurrence is None:
            nodes.append(node)
            continue
        name = next(name for name in node.output if name)
        writer = NodeWriter(f"{name}_unrolled_", opset, constants)
        recurrence.write(writer)
        nodes += writer.nodes
        model.graph.initializer.extend(writer.constants)
        changed = True
    if changed:
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    return changed


def _types(model: onnx.ModelProto) -> dict[str, tuple[list[int], Any]]:
    """Shapes and element types of values whose shape is known."""
    from onnx import helper, shape_inference

    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    types = {}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            types[value.name] = ([dim.dim_value for dim in kind.shape.dim], dtype)
    return types


def _constants(model: onnx.ModelProto) -> dict[str, Any]:
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    constants[node.output[0]] = attribute.t
    return constants


def _recurrence(
    node: onnx.NodeProto, types: Mapping[str, Any], constants: Mapping[str, Any], opset: int
) -> Any:
    """The recurrence that a node computes; None for a node that stays."""
    from onnx import helper, numpy_helper

    if node.op_type not in _GATES or node.domain not in ("", "ai.onnx") or not any(node.output):
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    inputs = [*node.input, *[""] * (8 - len(node.input))]
    if not _is_usual(node.op_type, attributes) or inputs[0] not in types:
        return None
    shape, dtype = types[inputs[0]]
    if attributes.get("layout", 0):
        shape = [shape[1], shape[0], shape[2]]
    if not 0 < shape[0] <= _MOST_STEPS or not shape[1]:
        return None
    lengths = constants.get(inputs[4])
    if lengths is not None and (numpy_helper.to_array(lengths) == shape[0]).all():
        inputs[4] = ""
    if inputs[4] and opset < _WITH_WHERE:
        return None
    activations = [text.decode() for text in attributes.get("activations", ())]
    return _Recurrence(
        kind=node.op_type,
        inputs=inputs,
        outputs=[*node.output, *[""] * (3 - len(node.output))],
        steps=shape[0],
        batch=shape[1],
        features=shape[2],
        width=attributes["hidden_size"],
        dtype=dtype,
        direction=attributes.get("direction", b"forward").decode(),
        batch_first=bool(attributes.get("layout", 0)),
        reset_late=node.op_type == "GRU" and bool(attributes.get("linear_before_reset", 0)),
        activation=activations[0] if node.op_type == "RNN" and activations else "Tanh",
    )


def _is_usual(kind: str, attributes: Mapping[str, Any]) -> bool:
    if attributes.keys() - _KNOWN or "hidden_size" not in attributes:
        return False
    direction = attributes.get("direction", b"forward").decode()
    if direction not in ("forward", "reverse", "bidirectional"):
        return False
    count = 2 if direction == "bidirectional" else 1
    activations = [text.decode() for text in attributes.get("activations", ())]
    usual = any(activations == wanted * count for wanted in _ACTIVATIONS[kind])
    return (usual or not activations) and not any(
        attributes.get(name, 0) for name in ("clip", "input_forget")
    )


@dataclass(frozen=True)
class _Recurrence:
    """An LSTM, GRU or RNN with known sizes."""

    kind: str
    inputs: list[str]
    outputs: list[str]
    steps: int
    batch: int
    features: int
    width: int
    dtype: Any
    direction: str
    batch_first: bool

    reset_late: bool
    """Whether the reset gate of a GRU multiplies the product, not the state."""

    activation: str
    """The activation of an RNN."""

    def write(self, writer: NodeWriter) -> None:
        """Write the nodes."""
        reverse = {"forward": [False], "reverse": [True]}.get(self.direction, [False, True])
        directions = [self._one_way(writer, place, back) for place, back in enumerate(reverse)]
        joint = list(zip(*directions, strict=True))
        for output, axis, parts in zip(self.outputs, (1, 0, 0), joint, strict=True):
            if not output:
                continue
            if not self.batch_first:
                writer.call("Concat", *parts, axis=axis, name=output)
                continue
            joined = writer.call("Concat", *parts, axis=axis)
            order = [2, 0, 1, 3] if axis else [1, 0, 2]
            writer.call("Transpose", joined, perm=order, name=output)

    def _one_way(self, writer: NodeWriter, place: int, back: bool) -> list[str]:
        """All states of a direction, the last one and, of an LSTM, the last cell."""
        projected, weights, shift = self._products(writer, place)
        state, cell = (self._initial(writer, self.inputs[n], place) for n in (5, 6))
        nothing, peepholes = self._initial(writer, "", place), self._peepholes(writer, place)
        states = []
        pieces = list(enumerate(writer.split(projected, [self.batch] * self.steps, 0)))
        for step, x in reversed(pieces) if back else pieces:
            before = state, cell
            if self.kind == "LSTM":
                state, cell = self._lstm(writer, x, weights, state, cell, peepholes)
            elif self.kind == "GRU":
                state = self._gru(writer, x, weights, shift, state)
            else:
                total = writer.call("Add", x, writer.call("MatMul", state, weights))
                state = writer.call(self.activation, total)
            output = state
            if self.inputs[4]:
                # Behind the end of a text its state stays, and the output is zero.
                inside = self._inside(writer, step)
                output = writer.call("Where", inside, state, nothing)
                state, cell = (
                    now if now == old else writer.call("Where", inside, now, old)
                    for now, old in zip((state, cell), before, strict=True)
                )
            states.append(output)
        joined = writer.call("Concat", *(states[::-1] if back else states), axis=0)
        sequence = writer.reshape(joined, [self.steps, 1, self.batch, self.width])
        last = [writer.reshape(x, [1, self.batch, self.width]) for x in (state, cell)]
        return [sequence, *last]

    def _products(self, writer: NodeWriter, place: int) -> tuple[str, str, str]:
        """Inputs times their weights; the state's weights; its bias if it is added on its own."""
        x, input_weights, state_weights, bias = self.inputs[:4]
        size = _GATES[self.kind] * self.width
        if self.batch_first:
            x = writer.call("Transpose", x, perm=[1, 0, 2])
        across, along = (
            writer.call("Transpose", self._part(writer, name, place, [size, width]), perm=[1, 0])
            for name, width in ((input_weights, self.features), (state_weights, self.width))
        )
        rows = writer.reshape(x, [self.steps * self.batch, self.features])
        projected = writer.call("MatMul", rows, across)
        if not bias:
            return projected, along, ""
        biases = self._part(writer, bias, place, [2 * size])
        of_input, of_state = writer.split(biases, [size, size])
        if self.reset_late:
            return writer.call("Add", projected, of_input), along, of_state
        both = writer.call("Add", of_input, of_state)
        return writer.call("Add", projected, both), along, ""

    def _inside(self, writer: NodeWriter, step: int) -> str:
        """Which texts have this step."""
        lengths = writer.reshape(self.inputs[4], [self.batch, 1])
        return writer.call("Less", writer.constant(np.asarray(step, np.int32)), lengths)

    def _peepholes(self, writer: NodeWriter, place: int) -> list[str]:
        """What the cell of an LSTM counts in its input, output and forget gate."""
        if not self.inputs[7]:
            return []
        weights = self._part(writer, self.inputs[7], place, [3 * self.width])
        return writer.split(weights, [self.width] * 3)

    def _initial(self, writer: NodeWriter, given: str, place: int) -> str:
        if not given:
            return writer.constant(np.zeros((self.batch, self.width), self.dtype))
        if self.batch_first:
            given = writer.call("Transpose", given, perm=[1, 0, 2])
        return self._part(writer, given, place, [self.batch, self.width])

    def _part(self, writer: NodeWriter, x: str, place: int, shape: list[int]) -> str:
        """The part of one direction."""
        ways = 2 if self.direction == "bidirectional" else 1
        return writer.reshape(writer.split(x, [1] * ways, 0)[place], shape)

    def _lstm(
        self, writer: NodeWriter, x: str, weights: str, state: str, cell: str, peepholes: list[str]
    ) -> tuple[str, str]:
        """The next state and cell."""
        total = writer.call("Add", x, writer.call("MatMul", state, weights))
        enter, leave, keep, new = writer.split(total, [self.width] * 4)
        if peepholes:
            enter, keep = (
                writer.call("Add", gate, writer.call("Mul", weight, cell))
                for gate, weight in ((enter, peepholes[0]), (keep, peepholes[2]))
            )
        new = writer.call("Mul", writer.call("Sigmoid", enter), writer.call("Tanh", new))
        kept = writer.call("Mul", writer.call("Sigmoid", keep), cell)
        cell = writer.call("Add", kept, new)
        if peepholes:
            leave = writer.call("Add", leave, writer.call("Mul", peepholes[1], cell))
        return writer.call("Mul", writer.call("Sigmoid", leave), writer.call("Tanh", cell)), cell

    def _gru(self, writer: NodeWriter, x: str, weights: str, shift: str, state: str) -> str:
        """The next state."""
        sizes = [2 * self.width, self.width]
        x_gates, x_new = writer.split(x, sizes)
        if self.reset_late:
            product = writer.call("MatMul", state, weights)
            product = writer.call("Add", product, shift) if shift else product
            h_gates, h_new = writer.split(product, sizes)
        else:
            gate_weights, new_weights = writer.split(weights, sizes)
            h_gates = writer.call("MatMul", state, gate_weights)
        gates = writer.call("Sigmoid", writer.call("Add", x_gates, h_gates))
        keep, reset = writer.split(gates, [self.width] * 2)
        if self.reset_late:
            h_new = writer.call("Mul", reset, h_new)
        else:
            h_new = writer.call("MatMul", writer.call("Mul", reset, state), new_weights)
        new = writer.call("Tanh", writer.call("Add", x_new, h_new))
        # keep * state + (1 - keep) * new
        change = writer.call("Mul", keep, writer.call("Sub", state, new))
        return writer.call("Add", new, change)
