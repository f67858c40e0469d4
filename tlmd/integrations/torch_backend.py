"""The backend ``tlmd`` of `torch.compile`: graphs that get faster while they are used.

    model = torch.compile(model, backend="tlmd")

The first call compiles the graph with the best programs there are, and compares its outputs with
eager PyTorch. Its tasks go to the daemon of the state directory. Whenever the daemon has found
faster programs, the graph is compiled again in the background and swapped between two calls. What
is not faster than eager, what TVM cannot compile and what needs gradients runs in eager PyTorch. Of
a graph that TVM cannot compile as a whole, it compiles parts (`partition`).
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tlmd.data.model_spec import FP32
from tlmd.data.state_dir import default_state_dir
from tlmd.integrations import call_context, partitioned
from tlmd.integrations.eager_outputs import EagerOutputs
from tlmd.integrations.graph_options import GraphOptions
from tlmd.integrations.hot_swap import Function
from tlmd.integrations.libraries import CompileTime, Key, Libraries, Shapes, key_of, layout_of
from tlmd.integrations.weights import Weights

_log = logging.getLogger("tlmd.integrations")


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend ``tlmd`` of `torch.compile`. Its options are those of `optimize`.

    Parameters and buffers of the model become constants of the compiled graph. If they change, the
    graph runs in eager PyTorch. `mode` changes nothing: the daemon tunes until it gains nothing.
    """
    chosen = dict(options or {})
    state = Path(chosen.pop("state_dir", "") or default_state_dir()).absolute()
    background = bool(chosen.pop("background", True))
    precision, strict = chosen.pop("precision", FP32), bool(chosen.pop("strict_numerics", False))
    if chosen:
        raise ValueError(f"unknown option {min(chosen)!r} of the backend tlmd")
    graph_options = GraphOptions(state, background, str(precision), strict)
    numbers = (int, torch.SymInt)
    if not all(torch.is_tensor(value) or type(value) in numbers for value in example_inputs):
        _log.info("a graph with inputs that are no tensors or integers runs in eager PyTorch")
        return graph.forward
    return _Graph(graph, example_inputs, graph_options)


class _Graph:
    """A graph of `torch.compile`: its weights are inputs there and constants here.

    So are its integers, which are the symbolic sizes of other inputs, and its floats, which are
    tensors without dimensions of which it takes the `item`.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        example: Sequence[Any],
        options: GraphOptions,
    ) -> None:
        self._graph, self._options = graph, options
        self._fixed = {i: value for i, value in enumerate(example) if _is_weight(value)}
        self._weights = Weights(self._fixed.values())
        self._numbers = [i for i, value in enumerate(example) if not torch.is_tensor(value)]
        self._floats = [i for i in _float_inputs(graph, example) if i not in self._fixed]
        fixed = {*self._fixed, *self._numbers, *self._floats}
        self._inputs = [i for i in range(len(example)) if i not in fixed]
        self._libraries = Libraries("graph", _compile_time())
        self._has_effects = False
        """Whether it changes an input or a weight."""

    @property
    def functions(self) -> dict[Shapes, Function]:
        """For each combination of input shapes, what was compiled."""
        return self._libraries.functions

    def __call__(self, *values: Any) -> Any:
        """Run the graph."""
        inputs = [values[i] for i in self._inputs]
        numbers = [values[i] for i in self._numbers]
        usual = (
            inputs
            and not call_context.is_observed()
            and call_context.are_plain(inputs)
            and not call_context.need_gradients(values)
            and all(type(number) is int for number in numbers)
            and all(values[i] is weight for i, weight in self._fixed.items())
        )
        if not usual:
            return self._graph(*values)
        numbers += [_bits(values[i].item()) for i in self._floats]
        key = key_of(inputs, numbers)
        ready = self._libraries.find(key, layout_of(inputs))
        if ready is None:
            return self._eager(key, inputs, values)
        if self._weights.have_changed(ready.seconds):
            return self._graph(*values)
        return tuple(ready(inputs))

    def _eager(self, key: Key, inputs: Sequence[torch.Tensor], values: Sequence[Any]) -> Any:
        """Run the graph. Compile it, if it has run often enough in this way."""
        if self._has_effects or self._libraries.is_settled(key) or self._weights.have_changed():
            return self._graph(*values)
        versions = call_context.versions(inputs)
        begin = time.perf_counter()
        outputs = self._graph(*values)
        seconds = time.perf_counter() - begin
        if versions != call_context.versions(inputs) or self._weights.have_moved():
            self._has_effects = True
        elif all(map(torch.is_tensor, outputs)):
            weights = list(self._fixed.values())
            self._libraries.learn(key, layout_of(inputs), EagerOutputs(inputs, outputs, weights))
            if self._libraries.is_due(key, seconds):
                self._compile(key, [tensor.detach().clone() for tensor in inputs])
        return outputs

    def _compile(self, key: Key, example: Sequence[torch.Tensor]) -> None:
        def make() -> Function:
            module = self._module(key.numbers)
            return partitioned.build("graph", module, example, self._options)

        self._weights.keep_sums()
        self._libraries.compile(key, make)

    def _module(self, numbers: Sequence[int]) -> torch.nn.Module:
        """The graph as a module of its inputs that are neither weights nor numbers."""
        given = dict(zip([*self._numbers, *self._floats], numbers, strict=True))
        floats = {i: _float(given[i]) for i in self._floats}
        fixed = {**self._fixed, **given}
        fixed |= {i: torch.tensor(value, dtype=torch.float64) for i, value in floats.items()}
        graph = _with_floats(self._graph, floats) if floats else self._graph
        return _WithFixed(graph, fixed, len(self._inputs) + len(fixed))


_by_frame: dict[int, CompileTime] = {}
"""How long compiling the last graph took, by the number of PyTorch for the function of the user."""


def _compile_time() -> CompileTime:
    """The time after which the graph that PyTorch makes now is compiled: at once if it is new.

    A function that PyTorch compiles again, as for a text that has become longer, waits.
    """
    compile_id = torch._guards.CompileContext.current_compile_id()
    if compile_id is None or compile_id.frame_id is None:
        return CompileTime()
    if not compile_id.frame_compile_id:
        _by_frame[compile_id.frame_id] = CompileTime()
    return _by_frame.setdefault(compile_id.frame_id, CompileTime())


class _WithFixed(torch.nn.Module):
    """`graph` with some of its inputs fixed."""

    def __init__(self, graph: Any, fixed: Mapping[int, Any], count: int) -> None:
        super().__init__()
        self.graph = graph
        self._count = count
        self._numbers = {i: value for i, value in fixed.items() if not torch.is_tensor(value)}
        self._weights = sorted(set(fixed) - set(self._numbers))
        for index in self._weights:
            self.register_buffer(f"weight_{index}", fixed[index].detach(), persistent=False)
        self.training = False

    def forward(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        rest = iter(inputs)
        return tuple(self.graph(*(self._value(i, rest) for i in range(self._count))))

    def _value(self, index: int, rest: Iterator[torch.Tensor]) -> Any:
        if index in self._numbers:
            return self._numbers[index]
        return getattr(self, f"weight_{index}") if index in self._weights else next(rest)


def _is_weight(value: Any) -> bool:
    """Whether a graph's input is a parameter or a buffer of the model."""
    mark = getattr(value, "_dynamo_static_input_type", None)
    return isinstance(value, torch.nn.Parameter) or (torch.is_tensor(value) and mark is not None)


def _items(placeholder: torch.fx.Node) -> list[torch.fx.Node]:
    users = list(placeholder.users)
    return [user for user in users if user.op == "call_method" and user.target == "item"]


def _float_inputs(graph: torch.fx.GraphModule, example: Sequence[Any]) -> list[int]:
    """The inputs that are Python floats: nothing is taken of them but the `item`."""
    return [
        index
        for index, (node, value) in enumerate(
            zip(_placeholders(graph.graph), example, strict=False)
        )
        if torch.is_tensor(value) and value.dtype == torch.float64 and value.ndim == 0
        if node.users and len(_items(node)) == len(node.users)
    ]


def _with_floats(graph: torch.fx.GraphModule, values: Mapping[int, float]) -> torch.fx.GraphModule:
    """A copy of the graph in which the items of these inputs are numbers."""
    copy = torch.fx.Graph()
    copy.output(copy.graph_copy(graph.graph, {}))
    placeholders = _placeholders(copy)
    for index, value in values.items():
        for item in _items(placeholders[index]):
            for user in list(item.users):
                user.args, user.kwargs = torch.fx.node.map_arg(
                    (user.args, user.kwargs), _replacing(item, value)
                )
            copy.erase_node(item)
    return torch.fx.GraphModule(graph, copy)


def _replacing(old: torch.fx.Node, value: float) -> Callable[[torch.fx.Node], Any]:
    return lambda node: value if node is old else node


def _placeholders(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _bits(value: float) -> int:
    """A float as an integer, which differs for 0.0 and -0.0."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
