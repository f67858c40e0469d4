"""Products of four bytes, summed in int32: the dot product of AVX-512 VNNI.

Four neighbours of the data are `uint8`, the four of a word of the weights `int8`
(Intel, "Intrinsics Guide", `_mm512_dpbusd_epi32`). The sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from tlmd.alternatives.words.words import WORD, Words, signature

QUAD = 4
FEATURE = "avx512vnni"
"""What a CPU must have."""
_BYTE = 8


def product_text(number: Callable[[int], str], word: str) -> str:
    """The expression of `product` in TVMScript. `number`: the text of one of the four bytes."""
    return " + ".join(
        f'T.Cast("int32", {number(index)}) * {_signed_text(word, index)}' for index in range(QUAD)
    )


def _signed_text(word: str, index: int) -> str:
    above = _BYTE * (QUAD - 1 - index)
    shifted = f"T.shift_left({word}, T.uint32({above}))" if above else word
    return f'T.shift_right(T.reinterpret({shifted}, dtype="int32"), {_BYTE * (QUAD - 1)})'


_PRODUCTS = product_text(lambda index: f"a[{index}]", "b[v]")
_HEAD = signature("uint8", QUAD, "int32")
_DESCRIPTION = f"""{_HEAD}
        for i in T.serial(0, 16):
            with T.sblock("update"):
                v = T.axis.remap("S", [i])
                c[v] = c[v] + ({_PRODUCTS})
"""
_IMPLEMENTATION = f"""{_HEAD}
        c[T.ramp(T.int32(0), 1, 16)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
            c.vload([0], dtype="int32x16"),
            T.reinterpret(
                T.broadcast(T.reinterpret(a.vload([0], dtype="uint8x4"), dtype="int32"), 16),
                dtype="int8x64",
            ),
            T.reinterpret(b.vload([0], dtype="uint32x16"), dtype="int8x64"),
            dtype="int32x16",
        )
"""


def product(numbers: Sequence[Any], word: Any) -> Any:
    """The products of four `uint8` and the bytes of a word, added: an int32."""
    total = None
    for index, number in enumerate(numbers):
        one = number.astype("int32") * _signed(word, index)
        total = one if total is None else total + one
    return total


def _signed(word: Any, index: int) -> Any:
    above = _BYTE * (QUAD - 1 - index)
    part = word << tirx.const(above, WORD) if above else word
    return tirx.reinterpret("int32", part) >> tirx.const(_BYTE * (QUAD - 1), "int32")


WORDS = Words(
    count=QUAD,
    given="uint8",
    summed="int32",
    product=product,
    dot="tlmd_int8_dot_16x4",
    description=_DESCRIPTION,
    implementation=_IMPLEMENTATION,
)
