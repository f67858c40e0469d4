"""Replacing of single nodes of an ONNX graph by nodes that TVM imports rightly.

A rewriter is a function of one operator. It writes the nodes that give the same results, or
returns None for a node that stays. What it writes is rewritten in turn.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmd.models.onnx.node_writer import NodeWriter

if TYPE_CHECKING:
    import onnx

STANDARD = ("", "ai.onnx")
_ELEMENTWISE = {"Gelu"}  # operators of ONNX Runtime's own that stay
_FIRST_OPSET = 7  # the first in which operators broadcast


@dataclass
class Operation:
    """A node, and what is known of its inputs and outputs."""

    node: onnx.NodeProto
    types: Types
    writer: NodeWriter

    attributes: dict[str, Any]
    """The values of its attributes; texts are decoded."""

    def input(self, place: int) -> str:
        """The name of an input; empty if it is not given."""
        return self.node.input[place] if place < len(self.node.input) else ""

    def output(self, place: int) -> str:
        """The name of an output; empty if it is not wanted."""
        return self.node.output[place] if place < len(self.node.output) else ""

    def shape(self, name: str) -> list[int]:
        """The shape of a value. Raises `Unknown`."""
        if name in self.writer.tensors:
            return list(self.writer.tensors[name].dims)
        return self.types.known(name)[0]

    def dtype(self, name: str) -> Any:
        """The element type of a value, as one of numpy. Raises `Unknown`."""
        from onnx import helper

        if name in self.writer.tensors:
            return helper.tensor_dtype_to_np_dtype(self.writer.tensors[name].data_type)
        return self.types.known(name)[1]

    def constant(self, place: int) -> Any:
        """The value of an input; None if it is not given. Raises `Unknown` if it is no constant."""
        name = self.input(place)
        if not name:
            return None
        if name not in self.writer.tensors:
            raise Unknown(name)
        return self.writer.value(name)


class Unknown(Exception):
    """A shape or value that the file does not say."""


Rewriter = Callable[[Operation], Sequence[str] | None]
Rewriters = dict[tuple[str, str], Rewriter]
"""Rewriters by domain and operator; the domain of standard operators is empty."""


class Types:
    """Shapes and element types of the values of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        from onnx import shape_inference

        self._model = model
        graph = shape_inference.infer_shapes(model, data_prop=True).graph
        values = [*graph.input, *graph.value_info, *graph.output]
        self._protos: dict[str, Any] = {value.name: value.type for value in values}

    def known(self, name: str) -> tuple[list[int], Any]:
        """The shape and the element type of a value. Raises `Unknown`."""
        from onnx import helper

        kind = getattr(self._protos.get(name), "tensor_type", None)
        if kind is None or not _is_complete(kind):
            raise Unknown(name)
        shape = [dim.dim_value for dim in kind.shape.dim]
        return shape, helper.tensor_dtype_to_np_dtype(kind.elem_type)

    def add(self, tensor: onnx.TensorProto) -> None:
        """Take in a constant."""
        from onnx import helper

        self._protos[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)

    def learn(self, node: onnx.NodeProto, constants: dict[str, Any]) -> None:
        """Infer the types of a node's outputs, if they are not known."""
        from onnx import defs, shape_inference

        wanted = [name for name in node.output if name and not self._knows(name)]
        given = {name: self._protos.get(name) for name in node.input if name}
        if not wanted or None in given.values():
            return
        if node.op_type in _ELEMENTWISE and node.domain not in STANDARD:
            self._protos[wanted[0]] = given[node.input[0]]
        if node.domain not in STANDARD:
            return
        imports = [o for o in self._model.opset_import if o.domain in STANDARD]
        try:
            found = shape_inference.infer_node_outputs(
                defs.get_schema(node.op_type, imports[0].version),
                node,
                given,
                {name: constants[name] for name in given if name in constants},
                opset_imports=imports,
                ir_version=self._model.ir_version,
            )
        except Exception:  # it stays unknown
            return
        self._protos |= {name: found[name] for name in wanted if name in found}

    def _knows(self, name: str) -> bool:
        kind = getattr(self._protos.get(name), "tensor_type", None)
        return kind is not None and _is_complete(kind)


def _is_complete(kind: Any) -> bool:
    dims = kind.shape.dim
    return bool(kind.HasField("shape")) and all(dim.HasField("dim_value") for dim in dims)


def rewrite(model: onnx.ModelProto, rewriters: Rewriters) -> None:
    """Replace nodes in the model, until no rewriter has anything to do."""
    domains = {o.domain: o.version for o in model.opset_import}
    opset = max((domains.get(domain, 0) for domain in STANDARD), default=0)
    used = {_key(node) for node in model.graph.node}
    if opset < _FIRST_OPSET or not used & rewriters.keys():
        return
    types, constants = Types(model), _constants(model)
    for tensor in model.graph.initializer:
        types.add(tensor)
    pending, done = deque(model.graph.node), []
    for number in itertools.count():
        if not pending:
            break
        node = pending.popleft()
        writer = NodeWriter(f"{_name(node)}_written{number}_", opset, constants)
        results = _results(node, types, writer, rewriters)
        if results is None:
            types.learn(node, constants)
            done.append(node)
            if node.op_type == "Identity" and node.input[0] in constants:
                constants[node.output[0]] = constants[node.input[0]]
            continue
        for tensor in writer.constants:
            types.add(tensor)
        model.graph.initializer.extend(writer.constants)
        _give_names(writer, results, node.output)
        pending.extendleft(reversed(writer.nodes))
    del model.graph.node[:]
    model.graph.node.extend(done)
    _drop_unused(model)


def _drop_unused(model: onnx.ModelProto) -> None:
    """Remove weights that nothing reads any more; TVM cannot read those of four bits."""
    used = {value.name for value in model.graph.output}
    nodes = list(model.graph.node)
    if any(a.HasField("g") or a.graphs for node in nodes for a in node.attribute):
        return  # branches read weights, too
    used |= {name for node in nodes for name in node.input}
    given = {value.name for value in model.graph.input}
    for tensor in [t for t in model.graph.initializer if t.name not in used | given]:
        model.graph.initializer.remove(tensor)


def _results(
    node: onnx.NodeProto, types: Types, writer: NodeWriter, rewriters: Rewriters
) -> Sequence[str] | None:
    from onnx import helper

    rewriter = rewriters.get(_key(node))
    if rewriter is None or not any(node.output):
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    texts = {name: v.decode() for name, v in attributes.items() if isinstance(v, bytes)}
    try:
        return rewriter(Operation(node, types, writer, attributes | texts))
    except Unknown:
        return None


def _give_names(writer: NodeWriter, results: Sequence[str], names: Iterable[str]) -> None:
    """Let the results have the names of the node's outputs."""
    own = {name: node for node in writer.nodes for name in node.output}
    for result, name in zip(results, names, strict=False):
        if not name:
            continue
        if result not in own or results.count(result) > 1:
            writer.call("Identity", result, name=name)
            continue
        for node in writer.nodes:
            for ends in (node.input, node.output):
                ends[:] = [name if end == result else end for end in ends]


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    return ("" if node.domain in STANDARD else node.domain, node.op_type)


def _name(node: onnx.NodeProto) -> str:
    return next((name for name in node.output if name), "")


def _constants(model: onnx.ModelProto) -> dict[str, Any]:
    """The tensors that the model holds."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                constants[node.output[0]] = attribute.t
    return constants
