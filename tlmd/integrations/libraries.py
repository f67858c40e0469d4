"""The libraries of one module: one for each combination of shapes, dtypes and settings of PyTorch.

The first combination is compiled at once. Another one runs in eager PyTorch until that has taken as
long as compiling took: a program that never repeats a shape waits for no compiler, and no program
takes more than twice as long as it would with the better choice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tlmd.integrations.call_context import Context, context, is_default
from tlmd.integrations.eager_outputs import EagerOutputs
from tlmd.integrations.hot_swap import Function
from tlmd.integrations.programs import COMPILING

_log = logging.getLogger("tlmd.integrations")
MOST = 8  # combinations that are compiled; it takes seconds for each
_MOST_SEEN = 64  # combinations that are remembered
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Key:
    """One combination for which a library is compiled."""

    shapes: Shapes
    dtypes: tuple[torch.dtype, ...]
    settings: Context
    numbers: tuple[int, ...] = ()


Layout = tuple[tuple[int, ...], ...]
"""The strides of the inputs."""


@dataclass(frozen=True)
class UsableLibrary:
    """What a call needs that a library runs."""

    function: Function
    outputs: EagerOutputs

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run the library; outputs as those of eager PyTorch."""
        return self.outputs.apply(tensors, self.function(tensors))

    @property
    def seconds(self) -> float:
        """How long a run takes, about."""
        return self.function.swaps[-1] if self.function.swaps else 0.0


def key_of(tensors: Sequence[torch.Tensor], numbers: Sequence[int] = ()) -> Key:
    """The combination of these inputs in this thread."""
    shapes = tuple([tuple(t.shape) for t in tensors])
    return Key(shapes, tuple([t.dtype for t in tensors]), context(), tuple(numbers))


def layout_of(tensors: Sequence[torch.Tensor]) -> Layout:
    """The strides of these inputs."""
    return tuple([t.stride() for t in tensors])


@dataclass
class CompileTime:
    """How long calls run in eager PyTorch before they are compiled for: as long as that takes."""

    seconds: float = 0.0


class Libraries:
    """What is compiled of a module, and what is known of its calls in eager PyTorch."""

    def __init__(self, name: str, compile_time: CompileTime) -> None:
        self._name, self._compile_time = name, compile_time
        self._functions: dict[Key, Function] = {}
        self._outputs: dict[tuple[Key, Layout], EagerOutputs] = {}
        self._spent: dict[Key, float] = {}

    @property
    def functions(self) -> dict[Shapes, Function]:
        """What is compiled for each combination of shapes, with the settings of most programs."""
        ordered = sorted(self._functions, key=lambda key: is_default(key.settings))
        return {(*((n,) for n in k.numbers), *k.shapes): self._functions[k] for k in ordered}

    def find(self, key: Key, layout: Layout) -> UsableLibrary | None:
        """The library for such a call; None if eager PyTorch must run or is faster."""
        function = self._functions.get(key)
        if function is None or function.reason:
            return None
        outputs = self._outputs.get((key, layout))
        return (
            UsableLibrary(function, outputs) if outputs is not None and outputs.is_known else None
        )

    def is_settled(self, key: Key) -> bool:
        """Whether eager PyTorch is known to be better for such a call, or nothing is tried more."""
        function = self._functions.get(key)
        return bool(function.reason) if function else len(self._functions) >= MOST

    def learn(self, key: Key, layout: Layout, outputs: EagerOutputs) -> None:
        """Remember how the outputs of such a call in eager PyTorch lie in memory."""
        if len(self._outputs) < _MOST_SEEN:
            self._outputs[key, layout] = outputs

    def is_due(self, key: Key, seconds: float) -> bool:
        """Whether to compile for such a call, after one in eager PyTorch that took `seconds`."""
        if key in self._functions or len(self._functions) >= MOST:
            return False
        spent = self._spent.pop(key, 0.0) + seconds
        if len(self._spent) >= _MOST_SEEN:
            del self._spent[next(iter(self._spent))]
        self._spent[key] = spent  # as the latest
        return spent >= self._compile_time.seconds

    def compile(self, key: Key, make: Callable[[], Function], wait: bool = False) -> None:
        """Compile with `make`. If another thread compiles now, `wait` for it or do nothing."""
        from torch._dynamo.convert_frame import compile_lock  # loads what torch.export needs, too

        if not COMPILING.acquire(blocking=wait):
            return
        try:
            if key not in self._functions:
                begin = time.perf_counter()
                with compile_lock:  # torch.export and a compilation of torch.compile share state
                    self._functions[key] = make()
                self._compile_time.seconds = time.perf_counter() - begin
            if len(self._functions) == MOST:
                _log.warning("%s: calls with further shapes run in eager PyTorch", self._name)
        finally:
            COMPILING.release()

    def restart(self) -> None:
        """Forget what was compiled: it is of another state of the module."""
        self._functions, self._outputs, self._spent = {}, {}, {}
