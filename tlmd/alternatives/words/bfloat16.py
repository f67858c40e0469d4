"""Products of pairs of bfloat16 numbers, summed in float32: the dot product of AVX-512 BF16.

A pair is one `uint32`, the element with the smaller index in the lower half. The other element is
as far away as there are pairs: so a loop over pairs reads two vectors, where LLVM would read
neighbours one by one. TVM widens bfloat16 before LLVM sees it, so the instruction is called by
LLVM's own language (Intel, "Intrinsics Guide", `_mm512_dpbf16_ps`).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tlmd.alternatives.words.words import WORD, Words, signature

PAIR = 2
FEATURE = "avx512bf16"
"""What a CPU must have."""
IMPORTED = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define linkonce_odr <16 x float> @tlmd_bf16_dot(<16 x float> %sum, <16 x i32> %a, <16 x i32> %b)
  alwaysinline {
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %found = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
    <16 x float> %sum, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %found
}
"""
"""What a program that uses the intrinsic imports: the annotation `pragma_import_llvm` of a loop."""

_UPPER, _INFINITY, _QUIET = 0xFFFF0000, 0x7F800000, 1 << 22


def product_text(a: str, b: str) -> str:
    """The expression of `product` in TVMScript."""
    lower, upper = (
        " * ".join(f'T.reinterpret({part.format(one)}, dtype="float32")' for one in (a, b))
        for part in ("T.shift_left({}, T.uint32(16))", f"T.bitwise_and({{}}, T.uint32({_UPPER}))")
    )
    return f"{lower} + {upper}"


_HEAD = signature(WORD, 1, "float32")
_DESCRIPTION = f"""{_HEAD}
        for i in T.serial(0, 16):
            with T.sblock("update"):
                v = T.axis.remap("S", [i])
                c[v] = c[v] + ({product_text("a[0]", "b[v]")})
"""
_IMPLEMENTATION = f"""{_HEAD}
        c[T.ramp(T.int32(0), 1, 16)] = T.call_pure_extern(
            "float32x16",
            "tlmd_bf16_dot",
            c.vload([0], dtype="float32x16"),
            T.broadcast(a[0], 16),
            b.vload([0], dtype="uint32x16"),
        )
"""


def product(a: Any, b: Any) -> Any:
    """The products of two pairs, added: a float32."""
    return _lower(a) * _lower(b) + _upper(a) * _upper(b)


def pair(lower: Any, upper: Any) -> Any:
    """Two float32 numbers, rounded to the nearest bfloat16 ones, as a pair; NaN stays NaN."""
    return (_rounded(lower) >> _bits(16)) | (_rounded(upper) & _bits(_UPPER))


def rest(number: Any) -> Any:
    """What rounding to bfloat16 leaves of a float32 number; 0 for infinity and NaN."""
    rounded = tirx.reinterpret("float32", _rounded(number) & _bits(_UPPER))
    bits = tirx.reinterpret("uint32", number)
    is_finite = (bits & _bits(_INFINITY)) < _bits(_INFINITY)
    return tirx.Select(is_finite, number - rounded, tirx.const(0.0, "float32"))


def truncated_pair(lower: Any, upper: Any) -> Any:
    """The same of numbers that are not negative, rounded towards 0."""
    first, second = (_limited(number) for number in (lower, upper))
    return (first >> _bits(16)) | (second & _bits(_UPPER))


def truncated_rest(number: Any) -> Any:
    """What `truncated_pair` leaves of a number that is not negative; of NaN NaN."""
    return number - tirx.reinterpret("float32", _limited(number) & _bits(_UPPER))


def added(both: Any) -> Any:
    """The sum of the numbers of a pair: a float32."""
    return _lower(both) + _upper(both)


def _bits(number: int) -> Any:
    return tirx.const(number, "uint32")


def _lower(both: Any) -> Any:
    return tirx.reinterpret("float32", both << _bits(16))


def _upper(both: Any) -> Any:
    return tirx.reinterpret("float32", both & _bits(_UPPER))


def _rounded(number: Any) -> Any:
    """The bits of a float32 number; its upper half is the nearest bfloat16, ties to even."""
    bits = tirx.reinterpret("uint32", number)
    even = (bits >> _bits(16)) & _bits(1)
    is_nan = (bits & _bits(0x7FFFFFFF)) > _bits(_INFINITY)
    return tirx.Select(is_nan, bits | _bits(_QUIET), bits + (even + _bits(0x7FFF)))


def _limited(number: Any) -> Any:
    """The bits of a number that is not negative; of NaN those of one NaN.

    No number reaches the limit, but without it LLVM gathers (benchmarks/LOG.md, "bfloat16:
    truncated weights of a softmax").
    """
    return tirx.min(tirx.reinterpret("uint32", number), _bits(_INFINITY | _QUIET))


WORDS = Words(
    count=PAIR,
    given="float32",
    summed="float32",
    word=lambda numbers: pair(*numbers),
    product=product,
    dot="tlmd_bf16_dot_16x2",
    description=_DESCRIPTION,
    implementation=_IMPLEMENTATION,
    imported=IMPORTED,
)
