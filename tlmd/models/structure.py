"""The structure around a model's tensors: nested tuples, lists, dicts, dataclasses and constants.

A compiled model takes and returns a flat list of tensors. The original takes arguments and returns
any nesting of containers. `describe` splits a value into a `Node` and its tensors; `rebuild` makes
the value again. Both are independent of torch and of TVM, and a node is plain JSON on disk.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tlmd.data.errors import BadInput

_CONSTANTS = (type(None), bool, int, float, str)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Node:
    """One value of a structure.

    Example: the structure of ``{"logits": tensor, "loss": None}`` is ``Node("dict", (Node("tensor",
    value=0), Node("constant")), ("logits", "loss"))``.
    """

    kind: str
    """``tensor``, ``constant``, ``tuple``, ``list``, ``dict`` or ``object`` (a dataclass or a named
    tuple)."""

    items: tuple[Node, ...] = ()

    keys: tuple[Any, ...] = ()
    """Keys of a dict, field names of an object."""

    value: Any = None
    """The index of a tensor in the flat list, or the constant."""

    type: str = ""
    """Class of a dict or an object, as ``package.module:Class``."""

    def tensors(self) -> Iterator[tuple[str, int]]:
        """Path and index of every tensor, such as ``("hidden_states.0", 3)``."""
        if self.kind == "tensor":
            yield "", self.value
        for key, item in zip(self.keys or range(len(self.items)), self.items, strict=True):
            for path, index in item.tensors():
                yield f"{key}.{path}" if path else str(key), index

    def to_json(self) -> dict[str, Any]:
        """The node as plain JSON."""
        document: dict[str, Any] = {"kind": self.kind}
        if self.items:
            document["items"] = [item.to_json() for item in self.items]
        if self.keys:
            document["keys"] = list(self.keys)
        if self.value is not None:
            document["value"] = self.value
        if self.type:
            document["type"] = self.type
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Node:
        """The node of `to_json`. Raises `KeyError` and `TypeError` for other documents."""
        items = tuple(cls.from_json(item) for item in document.get("items", ()))
        keys = tuple(document.get("keys", ()))
        return cls(document["kind"], items, keys, document.get("value"), document.get("type", ""))


def describe(
    value: Any, is_tensor: Callable[[Any], bool], tensors: list[Any], path: str = "output"
) -> Node:
    """The structure of `value`; its tensors are appended to `tensors`.

    Raises `BadInput` for an object that is no container of tensors and no constant.
    """
    if is_tensor(value):
        tensors.append(value)
        return Node("tensor", value=len(tensors) - 1)
    if isinstance(value, _CONSTANTS):
        return Node("constant", value=value)
    kind, keys, parts = _parts(value, path)
    name = f"{type(value).__module__}:{type(value).__qualname__}"
    items = tuple(
        describe(part, is_tensor, tensors, f"{path}.{key}")
        for key, part in zip(keys or range(len(parts)), parts, strict=True)
    )
    has_type = kind == "object" or (kind == "dict" and type(value) is not dict)
    return Node(kind, items, keys, type=name if has_type else "")


def _parts(value: Any, path: str) -> tuple[str, tuple[Any, ...], Sequence[Any]]:
    """Kind, keys and values of a container."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value))
        return "object", names, [getattr(value, name) for name in names]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "object", tuple(value._fields), list(value)
    if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
        return "dict", tuple(value.keys()), list(value.values())
    if isinstance(value, list | tuple):
        return "list" if isinstance(value, list) else "tuple", (), value
    raise BadInput(
        f"{path} of the model is a {type(value).__name__}, which tlmd cannot take apart; "
        "use tensors, tuples, lists, dicts or dataclasses"
    )


def rebuild(node: Node, tensors: Sequence[Any]) -> Any:
    """The value that `node` describes, with these tensors."""
    if node.kind == "tensor":
        return tensors[node.value]
    if node.kind == "constant":
        return node.value
    items = [rebuild(item, tensors) for item in node.items]
    if node.kind == "tuple":
        return tuple(items)
    if node.kind == "list":
        return items
    fields = dict(zip(node.keys, items, strict=True))
    cls = _class(node.type)
    if node.kind == "dict":
        return cls(fields) if cls is not None and issubclass(cls, dict) else fields
    if cls is None:
        return SimpleNamespace(**fields)
    return cls(**fields)


def _class(name: str) -> Any:
    """The class of a dict or an object; None if it is not there or is another kind of class."""
    module, _, attribute = name.partition(":")
    if not module or "<locals>" in attribute:
        return None
    try:
        value: Any = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        return None
    if not isinstance(value, type):
        return None
    named = issubclass(value, tuple) and hasattr(value, "_fields")
    takes_fields = dataclasses.is_dataclass(value) or issubclass(value, dict)
    return value if named or takes_fields else None


@dataclass(frozen=True)
class CallStructure:
    """How a model is called: the names of its arguments in order, and the structure of each."""

    names: tuple[str, ...]
    arguments: tuple[Node, ...]

    positional: int = 0
    """How many leading arguments the original is given by position."""

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
            if name not in given and any(node.tensors()):
                raise TypeError(f"the model needs the argument {name}")
            if name in given:
                _match(node, given[name], name, tensors)
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
        return {"names": list(self.names), "arguments": arguments, "positional": self.positional}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CallStructure:
        """The call of `to_json`."""
        arguments = tuple(Node.from_json(node) for node in document["arguments"])
        return cls(tuple(document["names"]), arguments, document["positional"])


def _match(node: Node, value: Any, path: str, tensors: dict[int, Any]) -> None:
    """Put the tensors of `value` into `tensors`; it must have the structure `node`."""
    if node.kind == "tensor":
        tensors[node.value] = value
        return
    if node.kind == "constant":
        if value != node.value:
            raise TypeError(f"the model was compiled with {path}={node.value!r}, not {value!r}")
        return
    kind, keys, parts = _parts(value, path)
    same = set(keys) == set(node.keys) and len(parts) == len(node.items)
    if (kind != node.kind and {kind, node.kind} != {"list", "tuple"}) or not same:
        raise TypeError(f"argument {path} has another structure than the model was compiled with")
    by_key = dict(zip(keys or range(len(parts)), parts, strict=True))
    for key, item in zip(node.keys or range(len(node.items)), node.items, strict=True):
        _match(item, by_key[key], f"{path}.{key}", tensors)


def describe_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    is_tensor: Callable[[Any], bool],
) -> tuple[CallStructure, list[Any]]:
    """The structure of the call ``function(*args, **kwargs)``, and its tensors in flat order."""
    names, values = _named(function, args, kwargs)
    tensors: list[Any] = []
    nodes = tuple(
        describe(value, is_tensor, tensors, f"input {name}")
        for name, value in zip(names, values, strict=True)
    )
    return CallStructure(tuple(names), nodes, len(args)), tensors


def _named(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[str], list[Any]]:
    """Name and value of each argument."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p for p in parameters if p.kind not in _VARIADIC]
    names = [p.name for p in plain[: len(args)]]
    names += [f"input_{index}" for index in range(len(names), len(args))]
    return [*names, *kwargs], [*args, *kwargs.values()]
