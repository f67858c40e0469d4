"""msgpack for the dataclasses of `tlmd.types`: fields by position, no class names, no pickle.

`unpack` checks shape and types against the annotations, so a damaged or foreign message is one
clear error and never a half-built object. Fields that a newer tlmd has added at the end of a class
take their defaults where an older message lacks them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from typing import Any, TypeVar

import msgpack

T = TypeVar("T")


class WireError(ValueError):
    """The bytes are not a message of the expected type."""


def pack(value: Any) -> bytes:
    """Encode any nesting of dataclasses, enums, tuples, lists, dicts and scalars."""
    return typing.cast(bytes, msgpack.packb(_plain(value), use_bin_type=True))


def unpack(cls: type[T], data: bytes) -> T:
    """Decode what `pack` made of a `cls`; raises `WireError` for anything else."""
    try:
        plain = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"not msgpack: {error}") from error
    return typing.cast(T, _build(cls, plain))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_plain(getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


@functools.cache
def _fields(cls: type[Any]) -> tuple[tuple[Any, ...], int]:
    """The types of all fields, and how many of them have no default."""
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    missing = dataclasses.MISSING
    needed = sum(f.default is missing and f.default_factory is missing for f in fields)
    return tuple(hints[f.name] for f in fields), needed


def _build(hint: Any, plain: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if plain is None:
            return None
        (hint,) = (a for a in typing.get_args(hint) if a is not type(None))
        return _build(hint, plain)
    if origin in (tuple, list):
        return _build_sequence(origin, typing.get_args(hint), plain)
    if origin is dict:
        key, item = typing.get_args(hint)
        return {_build(key, k): _build(item, v) for k, v in _expect(dict, plain).items()}
    if hint is Any:
        return plain
    if dataclasses.is_dataclass(hint):
        hints, needed = _fields(typing.cast(Any, hint))
        if not needed <= len(_expect(list, plain)) <= len(hints):
            raise WireError(f"{hint} has {len(hints)} fields, the message {len(plain)}")
        return typing.cast(Any, hint)(*map(_build, hints, plain))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(plain)
        except ValueError as error:
            raise WireError(str(error)) from error
    if hint is float:
        return float(_expect((int, float), plain))
    return _expect(hint, plain)


def _build_sequence(origin: Any, args: tuple[Any, ...], plain: Any) -> Any:
    items = _expect(list, plain)
    if origin is list or (len(args) == 2 and args[1] is Ellipsis):
        return origin(_build(args[0], v) for v in items)
    if len(items) != len(args):
        raise WireError(f"expected {len(args)} items, got {len(items)}")
    return tuple(map(_build, args, items))


def _expect(kind: Any, plain: Any) -> Any:
    if not isinstance(plain, kind) or (isinstance(plain, bool) and kind is not bool):
        raise WireError(f"expected {kind}, got {type(plain).__name__}")
    return plain
