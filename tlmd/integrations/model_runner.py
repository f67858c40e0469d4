"""Runs a module by libraries where they do what it does, else the module itself."""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tlmd.data.errors import TlmdError
from tlmd.integrations import call_context, partitioned
from tlmd.integrations.eager_outputs import EagerOutputs
from tlmd.integrations.graph_options import GraphOptions
from tlmd.integrations.hot_swap import Function
from tlmd.integrations.libraries import CompileTime, Key, Libraries, Shapes, key_of, layout_of
from tlmd.integrations.module_state import ModuleState
from tlmd.models import structure
from tlmd.models.call_structure import CallStructure, describe_call
from tlmd.models.pytorch import torch_frontend
from tlmd.models.structure import Node

_MOST_CALLS = 8  # ways to call a module: other keywords, other containers
Tensors = Sequence[torch.Tensor]


@dataclass
class _Call:
    """One way to call the module: which arguments there are, and in which containers."""

    structure: CallStructure
    libraries: Libraries
    outputs: Node | None = None
    """The structure of what is returned, as soon as it is known."""
    obstacle: str = ""
    """Why no library can stand for such a call."""

    def learn(self, key: Key, inputs: Tensors, outputs: Any, given: Tensors, now: Tensors) -> None:
        """Remember what a run of the module returned.

        `given`: the tensors of the module in that run; `now`: those that it has in later calls.
        """
        flat: list[torch.Tensor] = []
        try:
            node = torch_frontend.describe_outputs(outputs, flat)
            again = torch_frontend.describe_outputs(structure.rebuild(node, flat), [])
        except TlmdError as error:
            self.obstacle = str(error)
            return
        if again != node or not flat or self.outputs not in (None, node):
            self.obstacle = "what it returns cannot be made again"
            return
        self.outputs = node
        self.libraries.learn(key, layout_of(inputs), EagerOutputs(inputs, flat, given, now))


class ModelRunner:
    """Runs `module`. It compiles for `example` at once.

    Libraries are used as long as the module is as it was when they were compiled (`ModuleState`).
    If it has changed, the module itself runs. If it stays as it is then, it is compiled anew.
    """

    def __init__(self, module: nn.Module, example: Any, options: GraphOptions) -> None:
        self._module, self._options = module, options
        self._calls: list[_Call] = []
        self.compile_time = CompileTime()
        self._state = ModuleState(module)
        self._next: ModuleState | None = None
        """Another state, in which the module was seen."""
        self._next_s = 0.0
        """Seconds in eager PyTorch in that state."""
        self._modes = _modes(module)
        self._changes = 0
        """Calls in a row after which the module was another one."""
        args, kwargs = torch_frontend.arguments(example)
        self._start(tuple(args), dict(kwargs))

    @property
    def functions(self) -> Mapping[Shapes, Function]:
        """For each combination of input shapes, what was compiled."""
        return {
            shapes: function
            for call in self._calls
            for shapes, function in call.libraries.functions.items()
        }

    @property
    def reason(self) -> str:
        """Why no library runs; empty if one does for some calls."""
        obstacles = [self._obstacle(call) for call in self._calls]
        reasons = [function.reason for function in self.functions.values()]
        if "" in reasons and "" in obstacles:
            return ""
        return next(filter(None, (*obstacles, *reasons)), "nothing is compiled yet")

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module with these arguments."""
        call, tensors = self._bind(args, kwargs)
        if call is None or not call_context.are_plain(tensors):
            return self._module(*args, **kwargs)
        if call_context.need_gradients(itertools.chain(tensors, self._state.tensors)):
            return self._module(*args, **kwargs)
        key = key_of(tensors)
        ready = call.libraries.find(key, layout_of(tensors))
        if ready is None or call.outputs is None or self._state.has_changed(ready.seconds):
            return self._eager(call, key, tensors, args, kwargs)
        return structure.rebuild(call.outputs, ready(tensors))

    def _bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[_Call | None, list[Any]]:
        """The way of this call and its tensors. No way if nothing can be compiled for it."""
        for call in self._calls:
            with contextlib.suppress(TypeError, TlmdError):
                return call, call.structure.bind(args, kwargs)
        if len(self._calls) >= _MOST_CALLS:
            return None, []
        try:
            described, tensors = describe_call(self._module.forward, args, kwargs, torch.is_tensor)
        except TlmdError:
            return None, []
        if not tensors:
            return None, []
        self._calls.append(
            _Call(described, Libraries(type(self._module).__name__, self.compile_time))
        )
        return self._calls[-1], tensors

    def _eager(
        self,
        call: _Call,
        key: Key,
        tensors: Tensors,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run the module. Compile it, if it has run often enough in this way."""
        if self._obstacle(call) or call.libraries.is_settled(key):
            return self._module(*args, **kwargs)
        before, versions = self._current_state(), call_context.versions(tensors)
        begin = time.perf_counter()
        outputs = self._module(*args, **kwargs)
        seconds = time.perf_counter() - begin
        if before is None:
            return outputs
        self._changes = self._changes + 1 if before.has_changed() else 0
        if self._changes:
            return outputs
        if versions != call_context.versions(tensors):
            call.obstacle = "it changes an input"
        if before is self._next:
            self._next_s += seconds
            is_due = self._next_s >= self.compile_time.seconds
        else:
            is_due = call.libraries.is_due(key, seconds)
        if is_due and not before.obstacle and not call.obstacle:
            self._compile(call, key, tensors, before)
        if before is self._state:
            call.learn(key, tensors, outputs, before.tensors, before.tensors)
        return outputs

    def _obstacle(self, call: _Call) -> str:
        if self._changes > 1 and self._modes != _modes(self._module):
            self._changes, self._state = 0, ModuleState(self._module)  # from training to eval
            self._modes = _modes(self._module)
        changes = "its forward changes the module" if self._changes > 1 else ""
        return self._state.obstacle or changes or call.obstacle

    def _current_state(self) -> ModuleState | None:
        """The state of the module; None if it was not seen before the last call."""
        if not self._state.has_changed():
            return self._state
        if self._next is not None and not self._next.has_changed():
            return self._next
        self._next, self._next_s = ModuleState(self._module), 0.0
        return None

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compile for the example. Neither the module nor the example is changed by that."""
        call, tensors = self._bind(args, kwargs)
        twin = _twin(self._module)
        if call is None or twin is None or self._state.obstacle:
            return
        if not call_context.are_plain(tensors):
            return
        key, inputs = key_of(tensors), [tensor.detach().clone() for tensor in tensors]
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            self._look(call, key, inputs, twin)
        if not self._obstacle(call):
            self._compile(call, key, tensors, self._state, wait=True)

    def _look(self, call: _Call, key: Key, inputs: Tensors, twin: nn.Module) -> None:
        """Run a twin of the module, to see what it returns and what it changes."""
        args, kwargs = call.structure.arguments_of(inputs)
        versions = call_context.versions(inputs)
        for _ in range(2):  # some modules keep a table that they make in their first call
            state = ModuleState(twin)
            outputs = twin(*args, **kwargs)
            if not state.has_changed():
                break
            self._changes += 1
        if versions != call_context.versions(inputs):
            call.obstacle = "it changes an input"
        if self._changes < 2:
            self._changes = 0
            same = len(state.tensors) == len(self._state.tensors)
            if same:
                call.learn(key, inputs, outputs, state.tensors, self._state.tensors)

    def _compile(
        self, call: _Call, key: Key, tensors: Tensors, state: ModuleState, wait: bool = False
    ) -> None:
        """Compile for inputs like these, in this state of the module."""
        if state is not self._state:
            for other in self._calls:
                other.libraries.restart()
            self._state, self._next = state, None
        state.weights.keep_sums()

        def make() -> Function:
            twin = _twin(self._module) or self._module
            flat = torch_frontend.flat_module(twin, call.structure, caches=True)
            # Models of transformers return no key-value cache while they are exported.
            flat.as_run = call.outputs is not None and call.outputs.has_instances
            example = [tensor.detach().clone() for tensor in tensors]
            return partitioned.build(type(self._module).__name__, flat, example, self._options)

        call.libraries.compile(key, make, wait)


def _modes(module: nn.Module) -> list[bool]:
    """Which of the submodules are in training mode."""
    return [part.training for part in module.modules()]


def _twin(module: nn.Module) -> nn.Module | None:
    """A copy that shares the parameters; None if the module cannot be copied."""
    memo: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    try:
        return copy.deepcopy(module, memo)
    except Exception:  # modules raise many kinds
        return None
