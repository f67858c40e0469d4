"""The module that `tlmd.optimize` returns: the original, with another way to run it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tlmd.data.model_spec import FP32
from tlmd.data.state_dir import default_state_dir
from tlmd.integrations import call_context
from tlmd.integrations.graph_options import GraphOptions
from tlmd.integrations.hot_swap import Function
from tlmd.integrations.libraries import Shapes
from tlmd.integrations.model_runner import ModelRunner

_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_OWN = frozenset(("original", "_runner", "_example", "_options"))


class OptimizedModel(nn.Module):
    """The result of `tlmd.optimize`. It is called like `original`, and returns the same.

    It has the parameters, the submodules and all attributes of `original`, and is of its class.
    Where no library can do what `original` does, `original` runs: for gradients, with forward
    hooks, after weights have changed, while PyTorch traces it, in the child of a fork. A copy, and
    one that was pickled, compiles at its first call.
    """

    original: nn.Module

    def __init__(self, original: nn.Module, example: Any, options: GraphOptions) -> None:
        """Make the module; nothing is compiled before it is asked to `compile_now` or called."""
        own = vars(nn.Module())
        del own["training"]
        vars(self).update(own)
        vars(self).update({name: vars(original)[name] for name in _SHARED})
        vars(self).update(original=original, _runner=None, _example=example, _options=options)

    def compile_now(self) -> ModelRunner:
        """Compile for the example inputs, unless that was done."""
        if self._runner is None:
            vars(self)["_runner"] = ModelRunner(self.original, self._example, self._options)
        return self._runner  # type: ignore[no-any-return]

    @property
    def functions(self) -> Mapping[Shapes, Function]:
        """For each combination of input shapes, what runs."""
        return self.compile_now().functions

    @property
    def reason(self) -> str:
        """Why no library runs; empty if one does for some calls."""
        return self.compile_now().reason

    @property
    def training(self) -> bool:
        """As that of `original`."""
        return self.original.training

    @training.setter
    def training(self, mode: bool) -> None:
        self.original.training = mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        if torch.compiler.is_compiling() or call_context.is_observed():
            return self.original(*args, **kwargs)
        return self.compile_now()(args, kwargs)

    __call__ = nn.Module.__call__  # not that of the original's class, which `original` runs

    def __getattr__(self, name: str) -> Any:
        with contextlib.suppress(AttributeError):
            return super().__getattr__(name)
        if "original" not in vars(self):
            raise AttributeError(name)
        return getattr(self.original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self) or name == "training" or name in _OWN:
            super().__setattr__(name, value)
        else:
            setattr(self.original, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.original, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.original)})

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return optimized, (self.original, self._example, self._options)


def optimized(original: nn.Module, example: Any, options: GraphOptions) -> OptimizedModel:
    """An `OptimizedModel` that is also of the class of `original`. Nothing is compiled yet."""
    name, base = type(original).__name__, type(original)

    @functools.wraps(base.forward)  # some methods look which arguments it has
    def forward(self: OptimizedModel, *args: Any, **kwargs: Any) -> Any:
        return OptimizedModel.forward(self, *args, **kwargs)

    members = {"__doc__": base.__doc__, "__module__": base.__module__, "forward": forward}
    cls: Any = OptimizedModel
    with contextlib.suppress(TypeError):  # a class that cannot be combined with another one
        cls = type(name, (OptimizedModel, base), members)
    model: OptimizedModel = object.__new__(cls)
    OptimizedModel.__init__(model, original, example, options)
    return model


def optimize(
    model: nn.Module,
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
    original = model.original if isinstance(model, OptimizedModel) else model
    fast = optimized(original, example_inputs, options)
    fast.compile_now()
    return fast
