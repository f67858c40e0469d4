"""Products of four bytes, summed in int32: the dot product of AVX-512 VNNI.

A word has four bytes: those of the data are `uint8`, those of the weights `int8`
(Intel, "Intrinsics Guide", `_mm512_dpbusd_epi32`). The sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tlmd.alternatives.words import WORD, Words, signature

QUAD = 4
FEATURE, VECTOR_BITS = "avx512vnni", 512
"""What a CPU must have."""
_BYTE = 8


def _unsigned_text(index: int) -> str:
    shifted = f"T.shift_right(a[0], T.uint32({_BYTE * index}))" if index else "a[0]"
    is_last = index == QUAD - 1
    return f'T.Cast("int32", {shifted if is_last else f"T.bitwise_and({shifted}, T.uint32(255))"})'


def _signed_text(index: int) -> str:
    above = _BYTE * (QUAD - 1 - index)
    shifted = f"T.shift_left(b[v], T.uint32({above}))" if above else "b[v]"
    return f'T.shift_right(T.reinterpret({shifted}, dtype="int32"), {_BYTE * (QUAD - 1)})'


_PRODUCTS = " + ".join(f"{_unsigned_text(i)} * {_signed_text(i)}" for i in range(QUAD))
_HEAD = signature(WORD, "int32")
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
            T.reinterpret(T.broadcast(a[0], 16), dtype="int8x64"),
            T.reinterpret(b.vload([0], dtype="uint32x16"), dtype="int8x64"),
            dtype="int32x16",
        )
"""


def product(a: Any, b: Any) -> Any:
    """The products of the four bytes of two words, added: an int32."""
    found = None
    for index in range(QUAD):
        one = _unsigned(a, index) * _signed(b, index)
        found = one if found is None else found + one
    return found


def quad(numbers: Sequence[Any]) -> Any:
    """Four `uint8` as a word."""
    found = None
    for index, number in enumerate(numbers):
        part = number.astype(WORD)
        part = part << _bits(_BYTE * index) if index else part
        found = part if found is None else found | part
    return found


def _unsigned(word: Any, index: int) -> Any:
    part = word >> _bits(_BYTE * index) if index else word
    return (part & _bits(0xFF) if index < QUAD - 1 else part).astype("int32")


def _signed(word: Any, index: int) -> Any:
    above = _BYTE * (QUAD - 1 - index)
    part = word << _bits(above) if above else word
    return tirx.reinterpret("int32", part) >> tirx.const(_BYTE * (QUAD - 1), "int32")


def _bits(number: int) -> Any:
    return tirx.const(number, WORD)


WORDS = Words(
    count=QUAD,
    given="uint8",
    summed="int32",
    stage="packed_quads",
    word=quad,
    product=product,
    dot="tlmd_int8_dot_16x4",
    description=_DESCRIPTION,
    implementation=_IMPLEMENTATION,
)
