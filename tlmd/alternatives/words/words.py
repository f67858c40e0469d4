"""Short numbers in words of 32 bits, and the CPU's dot product of such words as an intrinsic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvm.s_tir import TensorIntrin

WORD = "uint32"


@dataclass(frozen=True)
class Words:
    """How a CPU multiplies the numbers of two words and adds the products.

    The number with the smaller index is in the lower bits.
    """

    count: int
    """Numbers in a word."""

    given: str
    """The dtype of the data that words are made from."""

    summed: str
    """The dtype of the sums."""

    product: Callable[[Any, Any], Any]
    """The sum of the products of a word of the data and one of the weights. Without `word` the
    first one is `count` neighbours of the data."""

    dot: str
    """The name of the intrinsic: sixteen sums, and the products of one word with sixteen ones."""

    description: str
    """What the intrinsic computes, as TVMScript."""

    implementation: str

    word: Callable[[Sequence[Any]], Any] | None = None
    """Makes a word of `count` numbers. They are as far apart as there are words, so that a loop
    over words reads vectors. None: neighbours of the data are a word already."""

    imported: str = ""
    """LLVM that a program which uses the intrinsic imports."""


class Intrinsic(Protocol):
    """An intrinsic for TVM: its name, what it computes and how, as TVMScript."""

    @property
    def dot(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def implementation(self) -> str: ...


def register(intrinsic: Intrinsic) -> None:
    """Register an intrinsic with TVM. Idempotent."""
    if TensorIntrin.get(intrinsic.dot, allow_missing=True) is not None:
        return
    from tvm.script import from_source
    from tvm.script import tirx as script

    texts = (intrinsic.description, intrinsic.implementation)
    TensorIntrin.register(intrinsic.dot, *(from_source(text, {"T": script}) for text in texts))


def signature(given: str, count: int, summed: str) -> str:
    """The head of both functions of an intrinsic; `count` elements of the data."""
    return f"""
@T.prim_func(s_tir=True)
def function(
    a: T.Buffer(({count},), "{given}", offset_factor=1),
    b: T.Buffer((16,), "{WORD}", offset_factor=1),
    c: T.Buffer((16,), "{summed}", offset_factor=1),
):
    with T.sblock("root"):
        T.reads(c[0:16], a[0:{count}], b[0:16])
        T.writes(c[0:16])
"""


def registration(kinds: Iterable[Intrinsic]) -> str:
    """A Python program that registers the intrinsics where there is TVM but no tlmd."""
    intrinsics = {kind.dot: (kind.description, kind.implementation) for kind in kinds}
    return f'''"""The intrinsics that these programs use: import this before TVM applies them."""

from tvm.s_tir import TensorIntrin
from tvm.script import from_source, tirx

# Name: what it computes, and how.
INTRINSICS = {intrinsics!r}
for name, texts in INTRINSICS.items():
    TensorIntrin.register(name, *(from_source(text, {{"T": tirx}}) for text in texts))
'''
