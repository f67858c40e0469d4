"""Models in PyTorch that get faster while they are used.

    model = torch.compile(model, backend="tlmd")      # or
    model = tlmd.optimize(model, example_inputs)

The first call compiles the graph with the best programs there are, and compares its outputs with
eager PyTorch. Its tasks go to the daemon of the state directory. Whenever the daemon has found
faster programs, the graph is compiled again in the background and swapped between two calls. What
is not faster than eager, what TVM cannot compile and what needs gradients runs in eager PyTorch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tlmd import structure
from tlmd.integrations.hot_swap import HotSwapped
from tlmd.state_dir import default_state_dir
from tlmd.workloads import torch_frontend

_log = logging.getLogger("tlmd.integrations")
Shapes = tuple[tuple[int, ...], ...]


class _ByShape:
    """One `HotSwapped` for all shapes that a flat module is called with."""

    def __init__(self, name: str, module: torch.nn.Module, state_dir: Path, background: bool):
        self._name, self._module = name, module
        self._state_dir, self._background = state_dir, background
        self.functions: dict[Shapes, HotSwapped] = {}

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        shapes = tuple(tuple(t.shape) for t in tensors)
        if shapes not in self.functions:
            self.functions[shapes] = HotSwapped(
                self._name, self._module, tensors, self._state_dir, self._background
            )
        return self.functions[shapes](tensors)


def _needs_gradients(tensors: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


class OptimizedModel(torch.nn.Module):
    """What `tlmd.optimize` returns: it is called as `original` is, and returns what that returns.

    Calls with gradients, and calls that `original` was not compiled for, run `original`. Its
    weights must not change. `functions` shows for each shape what runs.
    """

    def __init__(self, original: torch.nn.Module, example: Any, state_dir: Path, background: bool):
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
        self._run = _ByShape(type(original).__name__, flat, state_dir, background)
        with torch.no_grad():
            self._run(tensors)

    @property
    def functions(self) -> Mapping[Shapes, HotSwapped]:
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
        return structure.rebuild(self._outputs, self._run(tensors))


def optimize(
    model: torch.nn.Module,
    example_inputs: Any,
    *,
    state_dir: str | Path | None = None,
    background: bool = True,
) -> OptimizedModel:
    """Return `model` as a module that gets faster while it is used.

    `example_inputs` is a tuple of positional inputs, a dict of keyword inputs, or one tensor. With
    `background`, the daemon that runs on `state_dir` tunes it; without one, only records that are
    there already are used. Use the result without gradients (``torch.no_grad()``).
    """
    state = Path(state_dir) if state_dir else default_state_dir()
    return OptimizedModel(model.eval(), example_inputs, state.absolute(), background)


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend ``tlmd`` of `torch.compile`. Options: ``state_dir``, ``background``.

    Parameters and buffers of the model become constants of the compiled graph. If they change, the
    graph runs in eager PyTorch.
    """
    chosen = dict(options or {})
    state = Path(chosen.pop("state_dir", "") or default_state_dir()).absolute()
    background = bool(chosen.pop("background", True))
    if chosen:
        raise ValueError(f"unknown option {min(chosen)!r} of the backend tlmd")
    if not all(torch.is_tensor(value) for value in example_inputs):
        _log.info("a graph with symbolic sizes runs in eager PyTorch; use dynamic=False")
        return graph.forward
    return _Graph(graph, example_inputs, state, background)


class _Graph:
    """A graph of `torch.compile`: its weights are inputs there and constants here."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        example: Sequence[torch.Tensor],
        state_dir: Path,
        background: bool,
    ) -> None:
        self._graph = graph
        self._weights = {i: value for i, value in enumerate(example) if _is_weight(value)}
        self._versions = {i: value._version for i, value in self._weights.items()}
        inner = _WithWeights(graph, self._weights, len(example))
        self._run = _ByShape("graph", inner, state_dir, background)

    def __call__(self, *values: Any) -> Any:
        if _needs_gradients(values) or self._has_changed(values):
            return self._graph(*values)
        inputs = [value for i, value in enumerate(values) if i not in self._weights]
        if not inputs:
            return self._graph(*values)
        return tuple(self._run(inputs))

    def _has_changed(self, values: Sequence[Any]) -> bool:
        return any(
            values[i] is not weight or weight._version != self._versions[i]
            for i, weight in self._weights.items()
        )


class _WithWeights(torch.nn.Module):
    """`graph` with some of its inputs fixed."""

    def __init__(self, graph: Any, weights: Mapping[int, torch.Tensor], count: int) -> None:
        super().__init__()
        self.graph = graph
        self._count = count
        self._fixed = sorted(weights)
        for index, value in weights.items():
            self.register_buffer(f"weight_{index}", value.detach(), persistent=False)
        self.training = False

    def forward(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        rest = iter(inputs)
        values = [
            getattr(self, f"weight_{i}") if i in self._fixed else next(rest)
            for i in range(self._count)
        ]
        return tuple(self.graph(*values))


def _is_weight(value: Any) -> bool:
    """Whether a graph's input is a parameter or a buffer of the model."""
    mark = getattr(value, "_dynamo_static_input_type", None)
    return isinstance(value, torch.nn.Parameter) or mark is not None
