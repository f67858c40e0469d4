"""msgpack for the dataclasses of `tlmd.data.types`: fields by position, no class names, no pickle.

Requests of users grow (`ModelSpec`, `JobRequest` of pydantic) and cross with their fields' names.

`unpack` checks the number and types of the fields against the annotations. A damaged message
therefore gives one clear error and never an incomplete object. If a newer tlmd added fields at the
end of a class, these fields take their defaults when an older message lacks them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
import threading
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import msgpack

from tlmd.data.errors import TlmdError

T = TypeVar("T")
Builder = Callable[[Any], Any]
_SCALARS = (int, float, str, bytes, bool)
_local = threading.local()


class WireError(ValueError):
    """The bytes are not a message of the expected type."""


def pack(value: Any) -> bytes:
    """Encode any nesting of dataclasses, enums, tuples, lists, dicts and scalars."""
    return typing.cast(bytes, _packer().pack(value))


def pack_with(value: Any, field: str, packed: bytes) -> bytes:
    """`pack` of a dataclass of which one field is `packed` already, since it is in many values."""
    packer, names = _packer(), _names_of(typing.cast(Any, type(value)))
    parts = [packer.pack_array_header(len(names))]
    parts += [packed if name == field else packer.pack(getattr(value, name)) for name in names]
    return b"".join(parts)


def _packer() -> msgpack.Packer:
    """One per thread: making one takes longer than most messages."""
    try:
        return typing.cast(msgpack.Packer, _local.packer)
    except AttributeError:
        _local.packer = msgpack.Packer(use_bin_type=True, default=_plain)
        return _local.packer


def unpack(cls: type[T], data: bytes) -> T:
    """Decode a `cls` that `pack` encoded. Raises `WireError` for any other data."""
    try:
        plain = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: odd keys
        raise WireError(f"not msgpack: {error}") from error
    return typing.cast(T, _builder(typing.cast(Any, cls))(plain))


def head(data: bytes, count: int) -> list[Any]:
    """The first `count` items of a packed sequence or dataclass; fewer where there are no more.

    They can be read where the rest is damaged, or from a newer tlmd.
    """
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
    unpacker.feed(data)
    items: list[Any] = []
    try:
        length = unpacker.read_array_header()
        for _ in range(min(count, length)):
            items.append(unpacker.unpack())
    except (ValueError, TypeError, msgpack.UnpackException):
        pass
    return items


def _plain(value: Any) -> Any:
    """Encode a type that msgpack does not know. msgpack encodes all other types itself, in C."""
    if isinstance(value, enum.Enum):
        return value.value
    return _values_of(typing.cast(Any, type(value)))(value)


@functools.cache
def _values_of(cls: type[Any]) -> Callable[[Any], Any]:
    if hasattr(cls, "model_dump"):
        return lambda value: value.model_dump(by_alias=True)
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"a {cls.__name__} cannot cross a process")
    names = _names_of(cls)
    if len(names) < 2:
        return lambda value: tuple(getattr(value, name) for name in names)
    return operator.attrgetter(*names)


@functools.cache
def _names_of(cls: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


@functools.cache
def _builder(hint: Any) -> Builder:
    """Return the function that checks plain data against a type and builds the value."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (_builder(a) for a in args if a is not type(None))
        return lambda plain: None if plain is None else inner(plain)
    if origin in (tuple, list):
        return _sequence(origin, args)
    if origin is dict:
        key, item = map(_builder, args)
        return lambda plain: {key(k): item(v) for k, v in _expect(dict, plain).items()}
    if hint is Any:
        return lambda plain: plain
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint)
    if hasattr(hint, "model_validate"):
        return functools.partial(_model, hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return functools.partial(_member, hint)
    if hint is float:
        return lambda plain: float(_expect((int, float), plain))
    return lambda plain: plain if type(plain) is hint else _expect(hint, plain)


def _dataclass(cls: Any) -> Builder:
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    missing = dataclasses.MISSING
    needed = sum(f.default is missing and f.default_factory is missing for f in fields)
    builders = [_builder(hints[f.name]) for f in fields]
    simple = [i for i, f in enumerate(fields) if hints[f.name] in _SCALARS]
    others = [(i, builders[i]) for i in range(len(builders)) if i not in simple]
    kinds = [hints[fields[i].name] for i in simple]

    def build(plain: Any) -> Any:
        if not needed <= len(_expect(list, plain)) <= len(builders):
            raise WireError(f"{cls} has {len(builders)} fields, the message {len(plain)}")
        if len(plain) < len(builders) or [type(plain[i]) for i in simple] != kinds:
            return cls(*[b(v) for b, v in zip(builders, plain, strict=False)])
        for i, builder in others:  # the usual case: only these are not what they should be
            plain[i] = builder(plain[i])
        return cls(*plain)

    return build


def _sequence(origin: Any, args: tuple[Any, ...]) -> Builder:
    if origin is list or (len(args) == 2 and args[1] is Ellipsis):
        item, kinds = _builder(args[0]), {args[0]}
        if args[0] in _SCALARS:
            return lambda plain: origin(
                plain if set(map(type, _expect(list, plain))) <= kinds else map(item, plain)
            )
        return lambda plain: origin(map(item, _expect(list, plain)))
    builders = [_builder(a) for a in args]

    def build(plain: Any) -> Any:
        if len(_expect(list, plain)) != len(builders):
            raise WireError(f"expected {len(builders)} items, got {len(plain)}")
        return tuple(b(v) for b, v in zip(builders, plain, strict=True))

    return build


def _member(cls: type[enum.Enum], plain: Any) -> enum.Enum:
    try:
        return cls(plain)
    except ValueError as error:
        raise WireError(str(error)) from error


def _model(cls: Any, plain: Any) -> Any:
    """An object of pydantic, which crosses as a map with its fields' names."""
    try:
        return cls.model_validate(_expect(dict, plain))
    except (ValueError, TlmdError) as error:
        raise WireError(str(error)) from error


def _expect(kind: Any, plain: Any) -> Any:
    if not isinstance(plain, kind) or (isinstance(plain, bool) and kind is not bool):
        raise WireError(f"expected {kind}, got {type(plain).__name__}")
    return plain
