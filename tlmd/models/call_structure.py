"""How a model is called: its arguments by name, and the structure of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tlmd.models.structure import Node, describe, parts_of, rebuild

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class CallStructure:
    """How a model is called: the names of its arguments in order, and the structure of each."""

    names: tuple[str, ...]
    arguments: tuple[Node, ...]

    positional: int = 0
    """How many leading arguments the original is given by position."""

    needed: frozenset[str] = frozenset()
    """Arguments without tensors that a call must give, since the original has another default. They
    are not written to disk: who loads a tuned model may leave out what it was tuned with."""

    exact: bool = True
    """Whether 2.0 is another argument than 2. It is not for a model that was loaded."""

    def arguments_of(self, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments for the original, with these tensors."""
        values = [rebuild(node, tensors) for node in self.arguments]
        named = dict(zip(self.names[self.positional :], values[self.positional :], strict=True))
        return values[: self.positional], named

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The tensors of a call, in flat order.

        Raises `TypeError` if arguments are missing or have another structure than the arguments
        with which the model was compiled.
        """
        if len(args) > len(self.names):
            raise TypeError(f"the model takes {len(self.names)} arguments, not {len(args)}")
        given = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise TypeError(f"the model got the argument {name} twice")
            if name not in self.names:
                names = ", ".join(self.names)
                raise TypeError(f"the model has no argument {name}; they are {names}")
            given[name] = value
        tensors: dict[int, Any] = {}
        for name, node in zip(self.names, self.arguments, strict=True):
            if name not in given and (name in self.needed or any(node.tensors())):
                raise TypeError(f"the model needs the argument {name}")
            if name in given:
                _match(node, given[name], name, tensors, self.exact)
        return [tensors[index] for index in sorted(tensors)]

    def input_names(self) -> list[str]:
        """A name for each tensor, in flat order."""
        names: dict[int, str] = {}
        for name, node in zip(self.names, self.arguments, strict=True):
            for path, index in node.tensors():
                names[index] = f"{name}.{path}" if path else name
        return [names[index] for index in sorted(names)]

    def to_json(self) -> dict[str, Any]:
        """The call as plain JSON."""
        arguments = [node.to_json() for node in self.arguments]
        return {
            "names": list(self.names),
            "arguments": arguments,
            "positional": self.positional,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CallStructure:
        """The call of `to_json`."""
        arguments = tuple(Node.from_json(node) for node in document["arguments"])
        return cls(tuple(document["names"]), arguments, document["positional"], exact=False)


def _match(node: Node, value: Any, path: str, tensors: dict[int, Any], exact: bool) -> None:
    """Put the tensors of `value` into `tensors`; it must have the structure `node`."""
    if node.kind == "tensor":
        tensors[node.value] = value
        return
    if node.kind == "constant":
        if value != node.value or (exact and not _is_same(value, node.value)):
            raise TypeError(f"the model was compiled with {path}={node.value!r}, not {value!r}")
        return
    kind, keys, parts = parts_of(value, path)
    same = set(keys) == set(node.keys) and len(parts) == len(node.items)
    if (kind != node.kind and {kind, node.kind} != {"list", "tuple"}) or not same:
        raise TypeError(f"argument {path} has another structure than the model was compiled with")
    by_key = dict(zip(keys or range(len(parts)), parts, strict=True))
    for key, item in zip(node.keys or range(len(node.items)), node.items, strict=True):
        _match(item, by_key[key], f"{path}.{key}", tensors, exact)


def _is_same(first: Any, second: Any) -> bool:
    """Whether two constants are one: 2 and 2.0 are not, nor are 0.0 and -0.0."""
    return type(first) is type(second) and repr(first) == repr(second)


def describe_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    is_tensor: Callable[[Any], bool],
) -> tuple[CallStructure, list[Any]]:
    """The structure of the call ``function(*args, **kwargs)``, and its tensors in flat order."""
    parameters = _parameters(function)
    names, values = _named(parameters, args, kwargs)
    tensors: list[Any] = []
    nodes = tuple(
        describe(value, is_tensor, tensors, f"input {name}")
        for name, value in zip(names, values, strict=True)
    )
    needed = _needed(parameters, zip(names, values, nodes, strict=True))
    return CallStructure(tuple(names), nodes, len(args), needed), tensors


def _needed(
    parameters: Sequence[inspect.Parameter], arguments: Iterable[tuple[str, Any, Node]]
) -> frozenset[str]:
    """The arguments without tensors that are not the defaults of the original."""
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return frozenset(
        name
        for name, value, node in arguments
        if not any(node.tensors())
        if name not in defaults or not _is_same(value, defaults[name])
    )


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def _named(
    parameters: Sequence[inspect.Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[str], list[Any]]:
    """Name and value of each argument."""
    plain = [p for p in parameters if p.kind not in _VARIADIC]
    names = [p.name for p in plain[: len(args)]]
    names += [f"input_{index}" for index in range(len(names), len(args))]
    return [*names, *kwargs], [*args, *kwargs.values()]
