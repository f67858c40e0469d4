"""The intrinsics of tlmd whose names are in a text, such as a trace or a database."""

from __future__ import annotations

from tlmd.alternatives.amx import amx
from tlmd.alternatives.words import bfloat16, int8
from tlmd.alternatives.words.words import Intrinsic, register

WORDS = (bfloat16.WORDS, int8.WORDS)
"""Dot products of words. Kernels of the matrix unit are too many to be listed."""


def named(text: str) -> list[Intrinsic]:
    """Intrinsics whose names are in the text."""
    return [*(words for words in WORDS if words.dot in text), *amx.named(text)]


def register_named(text: str) -> None:
    """Register those with TVM. Idempotent. TVM cannot read a trace that names unknown ones."""
    for intrinsic in named(text):
        register(intrinsic)
