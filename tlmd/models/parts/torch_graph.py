"""The graph of a PyTorch model that can be exported: its operators, its weights and its state."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx.node import Node
from torch.utils.flop_counter import flop_registry

from tlmd.data.errors import NotImportable
from tlmd.models.parts.graph import Graph, Key
from tlmd.models.parts.regions import flat_graph, is_worth_it, reads_strides
from tlmd.models.parts.torch_program import TorchProgram
from tlmd.models.pytorch import torch_frontend
from tlmd.models.pytorch.importer import is_supported, operator_name, where
from tlmd.models.pytorch.normalise import normalise
from tlmd.models.pytorch.operators import converters
from tlmd.models.pytorch.state import seeded
from tlmd.models.pytorch.tensors import as_array, to_numpy, to_torch
from tlmd.models.pytorch.torch_frontend import FlatModel
from tlmd.models.sources import SourceModel, first_line

_COPY = torch.ops.aten.copy_.default


class TorchGraph(Graph):
    """A PyTorch model, exported and normalised. Raises `NotImportable` if that fails.

    Operators are functional; what the model writes to its buffers and inputs is in `writes`.
    """

    framework = "PyTorch"

    def __init__(self, flat: FlatModel, examples: Sequence[Sequence[np.ndarray]]) -> None:
        self.name, self.examples = flat.name, examples
        convertible = converters()
        self._module = _normalised(flat, convertible)
        self._graph = self._module.graph
        self._inputs: list[Node] = [n for n in self._graph.nodes if n.op == "placeholder"]
        self._take_writes()
        output = next(n for n in self._graph.nodes if n.op == "output")
        found = output.all_input_nodes
        self.results = [_only_node(value) for value in output.args[0]]
        self.inputs = list(self._inputs)
        self._values: dict[int, dict[Node, Any]] = {}
        ours = {n for n in self._graph.nodes if is_supported(n, convertible)}
        self._find_units(ours, {*found, *(key for _, key in self.writes)})
        self.supported = {number for number, unit in enumerate(self._units) if _is_ours(unit, ours)}
        if any(reads_strides(node) for unit in self._units for node in unit):
            self.supported = set()  # outputs of libraries are contiguous
        self._order_random_numbers()

    def _take_writes(self) -> None:
        """Make the buffers that are written inputs, and keep what is written to them."""
        states: list[Any] = []
        for node in list(self._graph.nodes):
            if node.op != "call_function":
                continue
            if node.target is _COPY and node.args[0].op in ("get_attr", "placeholder"):
                target, value = node.args[:2]
                if target.op == "get_attr":
                    states.append(to_numpy(_attribute(self._module, target.target)).copy())
                    target = self._as_input(target)
                node.replace_all_uses_with(value)
                self._graph.erase_node(node)
                self.writes += ((self._inputs.index(target), value),)
            elif isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
                raise NotImportable(f"{self.name} changes a tensor ({operator_name(node)})")
        self.state = tuple(states)

    def _as_input(self, buffer: Node) -> Node:
        """An input that replaces a buffer in the graph."""
        with self._graph.inserting_after(self._inputs[-1]):
            node = self._graph.placeholder(f"state_{len(self._inputs)}")
        node.meta = dict(buffer.meta)
        same = [n for n in self._graph.nodes if n.op == "get_attr" and n.target == buffer.target]
        for one in same:
            one.replace_all_uses_with(node)
            self._graph.erase_node(one)
        self._inputs.append(node)
        return node

    def _find_units(self, ours: set[Node], wanted: set[Node]) -> None:
        """The operators. Those that take one output of several out belong to the one they read."""
        self._constant: set[Node] = set()
        self._units: list[list[Node]] = []
        units: dict[Node, int] = {}
        for node in self._graph.nodes:
            sources = node.all_input_nodes
            if node.op == "get_attr" and node not in wanted:
                self._constant.add(node)
            elif node.op == "call_function" or node.op == "get_attr":
                if node in ours and node not in wanted and self._constant.issuperset(sources):
                    self._constant.add(node)
                elif node.target is operator.getitem and sources[0] in units:
                    units[node] = units[sources[0]]
                    self._units[units[node]].append(node)
                else:
                    units[node] = len(self._units)
                    self._units.append([node])
        self.gives = [list(unit) for unit in self._units]
        self.takes = [self._taken_by(unit) for unit in self._units]

    def _taken_by(self, unit: Sequence[Node]) -> list[Key]:
        sources = (source for node in unit for source in node.all_input_nodes)
        return [s for s in sources if s not in self._constant and s not in unit]

    def _order_random_numbers(self) -> None:
        """Let operators that draw random numbers run in the order of the original."""
        drawing = [n for n, unit in enumerate(self._units) if _draws(unit[0])]
        self.after = dict(zip(drawing[1:], drawing, strict=False))

    def source(self, nodes: Sequence[int]) -> SourceModel:
        """See `Graph.source`."""
        takes, _ = self.borders(nodes)
        example = tuple(self._value(node, 0) for node in takes)
        return torch_frontend.from_module(self.name, self._extracted(nodes), example)

    def program(self, nodes: Sequence[int]) -> TorchProgram:
        """See `Graph.program`."""
        return TorchProgram(self._extracted(nodes))

    def _extracted(self, nodes: Sequence[int]) -> torch.fx.GraphModule:
        """A module of these operators, which takes and returns what `borders` says."""
        takes, gives = self.borders(nodes)
        graph = torch.fx.Graph()
        copies: dict[Node, Node] = {}
        for key in takes:
            copies[key] = graph.placeholder(key.name)
            copies[key].meta = dict(key.meta)

        def copy(node: Node) -> Node:
            if node not in copies:
                for source in node.all_input_nodes:
                    copy(source)
                copies[node] = graph.node_copy(node, lambda source: copies[source])
            return copies[node]

        for number in nodes:
            for node in self._units[number]:
                copy(node)
        graph.output(tuple(copies[key] for key in gives))
        return torch.fx.GraphModule(self._module, graph)

    def values(self, keys: Sequence[Key], number: int) -> list[Any]:
        """See `Graph.values`."""
        values = [self._value(key, number) for key in keys]
        return list(map(as_array, values))

    def _value(self, node: Node, number: int) -> Any:
        if number not in self._values:
            with torch.no_grad(), seeded():
                interpreter = torch.fx.Interpreter(self._module, garbage_collect_values=False)
                interpreter.run(*map(to_torch, [*self.examples[number], *self.state]))
            self._values[number] = dict(interpreter.env)
        return self._values[number][node]

    def kind(self, node: int) -> Hashable:
        """See `Graph.kind`."""
        head = self._units[node][0]
        operands = tuple(_form(source.meta.get("val")) for source in head.all_input_nodes)
        rest = torch.fx.node.map_arg((head.args, head.kwargs), lambda _: "")
        return str(head.target), operands, repr(rest)

    def label(self, node: int) -> str:
        """See `Graph.label`."""
        head = self._units[node][0]
        return str(head.target) if head.op == "get_attr" else operator_name(head) + where(head)

    def work(self, node: int) -> float:
        """See `Graph.work`."""
        head = self._units[node][0]
        result = head.meta.get("val")
        count = flop_registry.get(getattr(head.target, "overloadpacket", None))
        try:
            if count is not None:
                args, kwargs = torch.fx.node.map_arg(
                    (head.args, head.kwargs), lambda source: source.meta["val"]
                )
                return float(count(*args, **kwargs, out_val=result))
            values = result if isinstance(result, tuple | list) else [result]
            return float(sum(v.numel() for v in values if torch.is_tensor(v)))
        except Exception:  # a size depends on data; the number is only displayed
            return 0.0

    def is_worth_it(self, nodes: Sequence[int]) -> bool:
        """See `Graph.is_worth_it`."""
        return is_worth_it([self._units[node][0] for node in nodes])


def _normalised(flat: FlatModel, convertible: Any) -> torch.fx.GraphModule:
    try:
        program = normalise(
            torch_frontend.exported(flat.name, flat.module, flat.tensors), convertible
        )
        return flat_graph(program)
    except NotImportable:
        raise
    except Exception as error:  # PyTorch raises many kinds
        raise NotImportable(f"PyTorch cannot split {flat.name} ({first_line(error)})") from error


def _only_node(value: Any) -> Node:
    if not isinstance(value, Node):
        raise NotImportable(f"an output of the model is a {type(value).__name__}")
    return value


def _is_ours(unit: Sequence[Node], ours: set[Node]) -> bool:
    head = unit[0]
    several = isinstance(head.meta.get("val"), tuple | list)
    return ours.issuperset(unit) and (not several or set(unit).issuperset(head.users))


def _draws(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _attribute(module: torch.nn.Module, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _form(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.dim(), value.is_contiguous()
    return type(value).__name__
