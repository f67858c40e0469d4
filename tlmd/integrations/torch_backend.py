"""Models in PyTorch that get faster while they are used.

    model = torch.compile(model, backend="tlmd")      # or
    model = tlmd.optimize(model, example_inputs)

The first call compiles the graph with the best programs there are, and compares its outputs with
eager PyTorch. Its tasks go to the daemon of the state directory. Whenever the daemon has found
faster programs, the graph is compiled again in the background and swapped between two calls. What
is not faster than eager, what TVM cannot compile and what needs gradients runs in eager PyTorch. Of
a graph that TVM cannot compile as a whole, it compiles parts (`partition`).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tlmd.data.model_spec import FP32
from tlmd.data.state_dir import default_state_dir
from tlmd.integrations import partitioned
from tlmd.integrations.graph_options import GraphOptions
from tlmd.integrations.hot_swap import Function
from tlmd.models import structure
from tlmd.models.pytorch import torch_frontend

_log = logging.getLogger("tlmd.integrations")
Shapes = tuple[tuple[int, ...], ...]
_MOST = 8  # combinations of shapes; compiling for one takes seconds


class _ByShape:
    """One function for each combination of shapes that a flat module is called with.

    `module` returns the module for the values of the inputs that are integers.
    """

    def __init__(
        self,
        name: str,
        module: Callable[[Sequence[int]], torch.nn.Module],
        options: GraphOptions,
    ) -> None:
        self._name, self._module, self._options = name, module, options
        self._dtypes: list[torch.dtype] = []
        self.functions: dict[Shapes, Function] = {}

    def find(self, tensors: Sequence[Any], numbers: Sequence[int] = ()) -> Function | None:
        """The function for such inputs. It compiles for new shapes, but not for new dtypes.

        None after `_MOST` combinations: what calls it then runs eager PyTorch.
        """
        shapes = (*((number,) for number in numbers), *(tuple(t.shape) for t in tensors))
        dtypes = [t.dtype for t in tensors]
        self._dtypes = self._dtypes or dtypes
        if dtypes != self._dtypes:
            return None
        if shapes not in self.functions:
            if len(self.functions) >= _MOST:
                return None
            self.functions[shapes] = partitioned.build(
                self._name, self._module(numbers), tensors, self._options
            )
            if len(self.functions) == _MOST:
                _log.warning("%s: calls with further shapes run in eager PyTorch", self._name)
        return self.functions[shapes]


def _needs_gradients(values: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(getattr(v, "requires_grad", False) for v in values)


class OptimizedModel(torch.nn.Module):
    """The result of `tlmd.optimize`. It is called like `original`, and returns the same.

    Calls with gradients, and calls that `original` was not compiled for, run `original`. Its
    weights must not change. `functions` shows for each shape what runs.
    """

    def __init__(self, original: torch.nn.Module, example: Any, options: GraphOptions) -> None:
        super().__init__()
        torch_frontend.without_cache(original)
        args, kwargs = torch_frontend.arguments(example)
        self.original = original
        self.training = False
        self._call, tensors = structure.describe_call(
            original.forward, args, kwargs, torch.is_tensor
        )
        with torch.no_grad():
            outputs = original(*args, **kwargs)
        self._outputs = structure.describe(outputs, torch.is_tensor, [])
        flat = torch_frontend.flat_module(original, self._call)
        name = type(original).__name__
        self._run = _ByShape(name, lambda _: flat, options)
        with torch.no_grad():
            self._run.find(tensors)

    @property
    def functions(self) -> Mapping[Shapes, Function]:
        """For each combination of input shapes, what runs."""
        return self._run.functions

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        try:
            tensors = self._call.bind(args, kwargs)
        except TypeError:  # another call than the one that was compiled
            return self.original(*args, **kwargs)
        if not all(map(torch.is_tensor, tensors)):
            return self.original(*args, **kwargs)
        if _needs_gradients([*tensors, *self.original.parameters()]):
            return self.original(*args, **kwargs)
        function = self._run.find(tensors)
        if function is None:
            return self.original(*args, **kwargs)
        return structure.rebuild(self._outputs, function(tensors))


def optimize(
    model: torch.nn.Module,
    example_inputs: Any,
    *,
    state_dir: str | Path | None = None,
    background: bool = True,
    precision: str = FP32,
    strict_numerics: bool = False,
) -> OptimizedModel:
    """Return `model` as a module that gets faster while it is used.

    `example_inputs` is a tuple of positional inputs, a dict of keyword inputs, or one tensor. With
    `background`, the daemon that runs on `state_dir` tunes it; without one, only records that are
    there already are used. `precision` and `strict_numerics` are those of `tlmd.tune`. Use the
    result without gradients (``torch.no_grad()``). Raises `BadInput` for a precision that is
    unknown or that this CPU does not have.
    """
    state = Path(state_dir) if state_dir else default_state_dir()
    options = GraphOptions(state.absolute(), background, precision, strict_numerics)
    return OptimizedModel(model.eval(), example_inputs, options)


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend ``tlmd`` of `torch.compile`. Its options are those of `optimize`.

    Parameters and buffers of the model become constants of the compiled graph. If they change, the
    graph runs in eager PyTorch.
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
        self._graph = graph
        self._weights = {i: value for i, value in enumerate(example) if _is_weight(value)}
        self._versions = {i: value._version for i, value in self._weights.items()}
        self._numbers = [i for i, value in enumerate(example) if not torch.is_tensor(value)]
        self._floats = [i for i in _float_inputs(graph, example) if i not in self._weights]
        fixed = {*self._weights, *self._numbers, *self._floats}
        self._inputs = [i for i in range(len(example)) if i not in fixed]
        self._run = _ByShape("graph", self._module, options)

    def __call__(self, *values: Any) -> Any:
        if _needs_gradients(values) or self._has_changed(values):
            return self._graph(*values)
        numbers = [values[i] for i in self._numbers]
        if not self._inputs or any(type(number) is not int for number in numbers):
            return self._graph(*values)
        numbers += [_bits(values[i].item()) for i in self._floats]
        inputs = [values[i] for i in self._inputs]
        function = self._run.find(inputs, numbers)
        return tuple(function(inputs)) if function else self._graph(*values)

    def _module(self, numbers: Sequence[int]) -> torch.nn.Module:
        """The graph as a module of its inputs that are neither weights nor numbers."""
        given = dict(zip([*self._numbers, *self._floats], numbers, strict=True))
        floats = {i: _float(given[i]) for i in self._floats}
        fixed = {**self._weights, **given}
        fixed |= {i: torch.tensor(value, dtype=torch.float64) for i, value in floats.items()}
        graph = _with_floats(self._graph, floats) if floats else self._graph
        return _WithFixed(graph, fixed, len(self._inputs) + len(fixed))

    def _has_changed(self, values: Sequence[Any]) -> bool:
        return any(
            values[i] is not weight or weight._version != self._versions[i]
            for i, weight in self._weights.items()
        )


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
