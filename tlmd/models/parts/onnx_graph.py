"""The graph of an ONNX model: its nodes, its weights, and the types of its values."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tlmd.data.errors import NotImportable
from tlmd.models.onnx import onnx_frontend, onnx_runtime, simplify
from tlmd.models.onnx.onnx_frontend import OnnxModel
from tlmd.models.onnx.rewriting import STANDARD
from tlmd.models.parts import onnx_work
from tlmd.models.parts.graph import Graph, Key
from tlmd.models.parts.onnx_program import OnnxProgram
from tlmd.models.parts.onnx_types import OnnxTypes
from tlmd.models.sources import SourceModel, first_line, input_infos

_RANDOM = {
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Bernoulli", "Multinomial", "Dropout"),
}
_SUBGRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_WORTH = 1e7  # additions and multiplications of a part with fewer nodes than `_FEWEST`
_FEWEST = 3


class OnnxGraph(Graph):
    """An ONNX model with fixed shapes. Raises `NotImportable` if it cannot be taken apart."""

    framework = "ONNX Runtime"

    def __init__(self, original: OnnxModel, examples: Sequence[Sequence[np.ndarray]]) -> None:
        self.name, self.examples = str(original.path), examples
        try:
            self._model = _prepared(original)
            self._runs = _runs(self._model, examples)
            self._values = self._runs[0]
        except Exception as error:  # ONNX and its runtime raise many kinds
            raise NotImportable(f"{self.name} has no parts ({first_line(error)})") from error
        graph = self._model.graph
        self._nodes = list(graph.node)
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._types = OnnxTypes(self._model, self._values)
        self.inputs = [value.name for value in onnx_runtime.inputs(self._model)]
        self.results = [value.name for value in graph.output]
        self.takes = [
            [name for name in _read_by(node) if name not in self._weights] for node in self._nodes
        ]
        self.gives = [[name for name in node.output if name] for node in self._nodes]
        known, wrong = simplify.importable(), simplify.misread(self._model)
        self.supported = {
            number
            for number, node in enumerate(self._nodes)
            if self._is_supported(number, known) and node not in wrong
        }
        self.after = {}
        self.repeatable = not any(node.op_type in _RANDOM for node in self._nodes)

    def _is_supported(self, number: int, known: set[tuple[str, str]]) -> bool:
        node = self._nodes[number]
        domain = "" if node.domain in STANDARD else node.domain
        if (domain, node.op_type) not in known or node.op_type in _RANDOM:
            return False
        if any(attribute.type in _SUBGRAPHS for attribute in node.attribute):
            return False
        return all(map(self._types.is_plain, [*self.takes[number], *self.gives[number]]))

    def source(self, nodes: Sequence[int]) -> SourceModel:
        """See `Graph.source`."""
        takes, gives = self.borders(nodes)
        shapes = {str(name): list(self._values[name].shape) for name in takes}
        module = onnx_frontend.import_proto(self.name, self._extracted(nodes), shapes)
        infos = input_infos(self.name, module, ())
        if [info.name for info in infos] != list(takes):
            raise NotImportable(f"TVM leaves out inputs of a part of {self.name}")
        return onnx_frontend.flat_source(self.name, module, infos, len(gives))

    def program(self, nodes: Sequence[int]) -> OnnxProgram:
        """See `Graph.program`."""
        return OnnxProgram(self._extracted(nodes))

    def _extracted(self, nodes: Sequence[int]) -> onnx.ModelProto:
        """A model of these nodes, which takes and returns what `borders` says."""
        takes, gives = self.borders(nodes)
        chosen = [self._nodes[number] for number in nodes]
        used = dict.fromkeys(name for node in chosen for name in _read_by(node))
        weights = [self._weights[name] for name in used if name in self._weights]
        graph = helper.make_graph(
            chosen,
            "part",
            [self._types.described(str(name)) for name in takes],
            [self._types.described(str(name)) for name in gives],
            weights,
        )
        return helper.make_model(
            graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version
        )

    def values(self, keys: Sequence[Key], number: int) -> list[Any]:
        """See `Graph.values`."""
        return [self._runs[number][key] for key in keys]

    def kind(self, node: int) -> Hashable:
        """See `Graph.kind`."""
        proto = self._nodes[node]
        attributes = tuple(a.SerializeToString(deterministic=True) for a in proto.attribute)
        operands = tuple(self._types.form(name) for name in proto.input if name)
        return proto.domain, proto.op_type, attributes, operands

    def label(self, node: int) -> str:
        """See `Graph.label`."""
        proto = self._nodes[node]
        name = proto.op_type if proto.domain in STANDARD else f"{proto.domain}.{proto.op_type}"
        return f"{name} in {proto.name}" if proto.name else name

    def work(self, node: int) -> float:
        """See `Graph.work`."""
        proto = self._nodes[node]
        return onnx_work.work(proto.op_type, *map(self._shapes, (proto.input, proto.output)))

    def _shapes(self, names: Sequence[str]) -> list[tuple[int, ...]]:
        return [
            tuple(self._weights[n].dims)
            if n in self._weights
            else tuple(getattr(self._values.get(n), "shape", ()))
            for n in names
        ]

    def is_worth_it(self, nodes: Sequence[int]) -> bool:
        """See `Graph.is_worth_it`."""
        heavy = any(onnx_work.is_heavy(self._nodes[node].op_type) for node in nodes)
        return heavy and (len(nodes) >= _FEWEST or sum(map(self.work, nodes)) >= _WORTH)


def _prepared(original: OnnxModel) -> onnx.ModelProto:
    """The model with fixed shapes, its functions written out, and what is constant computed."""
    from onnx import inliner

    model = simplify.fixed(inliner.inline_local_functions(original.proto), original.shapes)
    kept = []
    for node in model.graph.node:
        value = next((a for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and node.domain in STANDARD and value is not None:
            tensor = onnx.TensorProto()
            tensor.CopyFrom(value.t)
            tensor.name = node.output[0]
            model.graph.initializer.append(tensor)
        else:
            kept.append(node)
    weights = {tensor.name for tensor in model.graph.initializer}
    for output in model.graph.output:  # a weight that is returned is computed by a node
        if output.name in weights:
            kept.append(helper.make_node("Identity", [output.name], [f"{output.name}_returned"]))
            output.name = kept[-1].output[0]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def _runs(model: onnx.ModelProto, examples: Sequence[Sequence[np.ndarray]]) -> list[dict[Any, Any]]:
    """All values of a run for each example."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    named = {value.name for value in model.graph.output}
    outputs = [name for node in model.graph.node for name in node.output if name]
    whole.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in outputs if name not in named
    )
    session = onnx_runtime.session(whole.SerializeToString(), optimised=False)
    names = [value.name for value in session.get_outputs()]
    inputs, found = [value.name for value in onnx_runtime.inputs(model)], []
    for example in examples:
        feeds = dict(zip(inputs, example, strict=True))
        found.append({**feeds, **dict(zip(names, session.run(names, feeds), strict=True))})
    return found


def _read_by(node: onnx.NodeProto) -> list[str]:
    """The values that a node reads, also in its subgraphs."""
    inner = (
        graph
        for attribute in node.attribute
        for graph in ([attribute.g] if attribute.HasField("g") else attribute.graphs)
    )
    names = [name for name in node.input if name]
    return list(dict.fromkeys([*names, *(name for graph in inner for name in _free(graph))]))


def _free(graph: onnx.GraphProto) -> Iterator[str]:
    """The values that a subgraph reads from outside."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    read = [name for node in graph.node for name in _read_by(node)]
    yield from (name for name in [*read, *(v.name for v in graph.output)] if name not in own)
