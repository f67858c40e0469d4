"""What a library that was compiled from a module depends on, besides its inputs.

These are the submodules and their classes, parameters and buffers, hooks, and attributes. A library
is used only as long as none of them has changed; that is looked at before each call.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.weight_norm import WeightNorm

from tlmd.integrations.weights import Weights

_OWN = frozenset(nn.Module().__dict__) - {"training"}  # of every module; none is an option
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
_MOST_OBJECTS = 256  # configurations and the like; most modules of a model share one
_LONGEST = 256  # entries of a container; a table of words has more
_SIMPLE = (bool, int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device)
_PURE_HOOKS = (WeightNorm,)  # they compute an attribute from parameters, and nothing else


class ModuleState:
    """The state of a module, as it was when this was made."""

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._classes: list[Any] = list(map(type, self._modules))
        self._forwards = {cls: cls.forward for cls in set(self._classes)}
        tables = [
            vars(m)[name] for m in self._modules for name in ("_parameters", "_buffers", "_modules")
        ]
        self._tables = [table for table in tables if table]
        self._members = list(_members(self._tables))
        self._hooks = [vars(m)[name] for m in self._modules for name in _HOOKS]
        self._hooked = [list(map(id, hooks.values())) for hooks in self._hooks]
        self._is_hooked = any(self._hooks)
        self._attributes = _Attributes(self._modules)
        tensors = [member for member in self._members if isinstance(member, torch.Tensor)]
        self.tensors = [*tensors, *self._attributes.tensors]
        """Parameters, buffers and other tensors of the module."""
        self.weights = Weights(self.tensors)

    @property
    def obstacle(self) -> str:
        """Why no library can stand for the module; empty if one can."""
        hooks = chain(*(table.values() for table in (*self._hooks, *_GLOBAL_HOOKS)))
        if any(not isinstance(hook, _PURE_HOOKS) for hook in hooks):
            return "it has forward hooks, which must be called"
        if any(t.device.type != "cpu" for t in self.tensors):
            return "its weights are not on the CPU"
        return ""

    def has_changed(self, seconds: float = 0.0) -> bool:
        """Whether something is not as it was. `seconds`: as in `Weights.have_changed`."""
        return self.is_rebuilt() or self.weights.have_changed(seconds)

    def is_rebuilt(self) -> bool:
        """Whether anything but the values of tensors has changed."""
        return (
            sum(map(len, self._tables)) != len(self._members)
            or not all(map(is_, _members(self._tables), self._members))
            or list(map(type, self._modules)) != self._classes
            or any(_GLOBAL_HOOKS)
            or self._hooks_differ()
            or any(cls.forward is not known for cls, known in self._forwards.items())
            or self._attributes.differ()
        )

    def _hooks_differ(self) -> bool:
        if not self._is_hooked:
            return any(self._hooks)
        return [list(map(id, hooks.values())) for hooks in self._hooks] != self._hooked


class _Attributes:
    """Attributes of modules, and one level deeper those of their lists, dicts and objects."""

    def __init__(self, modules: list[nn.Module]) -> None:
        computed = _computed(modules)
        self._tables = [vars(m) for m in modules if id(m) not in computed]
        self._values = list(map(dict, self._tables))
        self._others = [(vars(m), computed[id(m)]) for m in modules if id(m) in computed]
        self._other_values = self._read_others()
        objects: dict[int, Any] = {}
        self.tensors: list[torch.Tensor] = []
        self._single: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        for table, values in zip(self._tables, self._values, strict=True):
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    self._single.append((table, name, value))
                elif name not in _OWN and not isinstance(value, (*_SIMPLE, nn.Module)):
                    self._look_into(value, objects)
        self.tensors += [value for _, _, value in self._single]
        self._objects = list(objects.values())
        self._contents = list(map(copy.copy, self._objects))

    def _look_into(self, value: Any, objects: dict[int, Any]) -> None:
        content = _content(value)
        self.tensors += [part for part in _parts(content) if isinstance(part, torch.Tensor)]
        is_short = not isinstance(content, tuple) and len(content) <= _LONGEST
        if is_short and len(objects) < _MOST_OBJECTS:
            objects[id(value)] = content

    def _read_others(self) -> list[dict[str, Any]]:
        return [{n: v for n, v in t.items() if n not in ignored} for t, ignored in self._others]

    def differ(self) -> bool:
        """Whether an attribute has another value, or there are more or fewer."""
        try:
            return (
                self._tables != self._values
                or self._read_others() != self._other_values
                or self._objects != self._contents
                or any(table[name] is not value for table, name, value in self._single)
            )
        except Exception:  # a tensor in the place of another: they do not compare
            return True


def _content(value: Any) -> Any:
    """The list, dict or set itself, or the attributes of another object. Nothing of a function."""
    if isinstance(value, list | dict | set | tuple):
        return value
    if callable(value) and not isinstance(value, functools.partial):
        return ()
    return getattr(value, "__dict__", ())


def _parts(content: Any) -> Iterable[Any]:
    return list(content.values()) if isinstance(content, dict) else content


def _members(tables: list[dict[str, Any]]) -> Iterator[Any]:
    """The values of all tables."""
    return chain.from_iterable(map(dict.values, tables))


def _computed(modules: list[nn.Module]) -> dict[int, set[str]]:
    """By the identity of a module: the attributes that its hooks compute anew at each call."""
    return {
        id(module): {hook.name for hook in hooks.values() if isinstance(hook, _PURE_HOOKS)}
        for module in modules
        if (hooks := vars(module)["_forward_pre_hooks"])
    }
