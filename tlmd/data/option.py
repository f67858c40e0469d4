"""How a field of a request is said on the command line and in Python, and how its text is read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Group = Literal["model", "job", "submit", "train", "client"]
"""Who takes a field. ``model``: every command that takes a model; ``job``: `tlmd tune` and `tlmd
submit`; ``submit`` and ``train``: these commands alone; ``client``: filled in by the client."""

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Option:
    """How one field is said. HTTP uses the field's name, or its alias."""

    group: Group

    keyword: str = ""
    """The keyword in Python, and the flag with dashes. Empty: the name of the field."""

    metavar: str | None = None

    read: Callable[[str], Any] = str
    """The value of a flag's text; raises `argparse.ArgumentTypeError`."""

    repeats: bool = False
    """The flag may be given several times; all its values together are the value."""

    positional: bool = False
    """The command takes the field without a flag."""


def shape(text: str) -> tuple[int, ...]:
    """The shape that ``1,3,224,224`` says."""
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 1,3,224,224")
    return shape


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def whole(text: str) -> int:
    """A whole number."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def duration(text: str) -> float:
    """Seconds: of ``90s``, ``10m`` or ``2h``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 10m or 2h")
    return float(match[1]) * _UNITS[match[2]]
