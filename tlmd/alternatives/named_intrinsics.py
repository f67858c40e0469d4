"""The intrinsics of tlmd whose names are in a text, such as a trace or a database."""

from __future__ import annotations

from tlmd.alternatives.amx import amx
from tlmd.alternatives.packed.packed import WORDS
from tlmd.alternatives.words.words import Intrinsic, register


def named(text: str) -> list[Intrinsic]:
    """Those whose names are in the text."""
    return [*(words for words in WORDS.values() if words.dot in text), *amx.named(text)]


def register_named(text: str) -> None:
    """Register those with TVM. Idempotent. TVM cannot read a trace that names unknown ones."""
    for intrinsic in named(text):
        register(intrinsic)
