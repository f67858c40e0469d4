"""The structure around a model's tensors: nested tuples, lists, dicts, dataclasses and constants.

A compiled model takes and returns a flat list of tensors. The original takes arguments and returns
any nesting of containers. `describe` splits a value into a `Node` and its tensors; `rebuild` makes
the value again. Both are independent of torch and of TVM, and a node is plain JSON on disk.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tlmd.data.errors import BadInput

_CONSTANTS = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class Node:
    """One value of a structure.

    Example: the structure of ``{"logits": tensor, "loss": None}`` is ``Node("dict", (Node("tensor",
    value=0), Node("constant")), ("logits", "loss"))``.
    """

    kind: str
    """``tensor``, ``constant``, ``tuple``, ``list``, ``dict``, ``object`` (a dataclass or a named
    tuple) or ``instance`` (of another class, whose attributes are the items)."""

    items: tuple[Node, ...] = ()

    keys: tuple[Any, ...] = ()
    """Keys of a dict, field names of an object, attributes of an instance."""

    value: Any = None
    """The index of a tensor in the flat list, or the constant."""

    type: str = ""
    """Class of a dict, an object or an instance, as ``package.module:Class``."""

    @property
    def has_instances(self) -> bool:
        """Whether an object is among the values that is none of the usual containers."""
        return self.kind == "instance" or any(item.has_instances for item in self.items)

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
    value: Any,
    is_tensor: Callable[[Any], bool],
    tensors: list[Any],
    path: str = "output",
    constants: tuple[type, ...] | None = None,
) -> Node:
    """The structure of `value`; its tensors are appended to `tensors`.

    With `constants`, further classes whose objects are constants, objects of any class are taken
    apart into their attributes. Such a node is not for the disk.
    Raises `BadInput` for an object that is no container of tensors and no constant.
    """
    if is_tensor(value):
        tensors.append(value)
        return Node("tensor", value=len(tensors) - 1)
    if isinstance(value, (*_CONSTANTS, *(constants or ()))):
        return Node("constant", value=value)
    kind, keys, values = parts_of(value, path, constants is not None)
    name = f"{type(value).__module__}:{type(value).__qualname__}"
    items = tuple(
        describe(part, is_tensor, tensors, f"{path}.{key}", constants)
        for key, part in zip(keys or range(len(values)), values, strict=True)
    )
    has_type = kind in ("object", "instance") or (kind == "dict" and type(value) is not dict)
    return Node(kind, items, keys, type=name if has_type else "")


def parts_of(
    value: Any, path: str, instances: bool = False
) -> tuple[str, tuple[Any, ...], Sequence[Any]]:
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
    name = f"{type(value).__module__}:{type(value).__qualname__}"
    if instances and hasattr(value, "__dict__") and not callable(value) and _imported(name):
        return "instance", tuple(vars(value)), list(vars(value).values())
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
    if node.kind == "instance":
        instance = object.__new__(_imported(node.type))
        vars(instance).update(fields)
        return instance
    cls = _class(node.type)
    if node.kind == "dict":
        return cls(fields) if cls is not None and issubclass(cls, dict) else fields
    if cls is None:
        return SimpleNamespace(**fields)
    return cls(**fields)


def _imported(name: str) -> Any:
    """The class of that name; None if it is not there."""
    module, _, attribute = name.partition(":")
    if not module or "<locals>" in attribute:
        return None
    try:
        value: Any = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        return None
    return value if isinstance(value, type) else None


def _class(name: str) -> Any:
    """The class of a dict or an object; None if it is not there or is another kind of class."""
    value = _imported(name)
    if value is None:
        return None
    named = issubclass(value, tuple) and hasattr(value, "_fields")
    takes_fields = dataclasses.is_dataclass(value) or issubclass(value, dict)
    return value if named or takes_fields else None
