"""The closed vocabulary: all words of the language. There is no token for unknown words.

The id of a word is its position in `WORDS`. A checkpoint stores `FINGERPRINT`; tlmd refuses weights
that were trained with another vocabulary.
"""

from __future__ import annotations

import hashlib

DIGIT_BASE = 256
MAX_POWER = 31
MAX_BLOCKS = 48
MAX_ITERATORS = 24
MAX_LEVELS = 32
MAX_SKETCHES = 32
MAX_LOCATIONS = 64
MAX_ARITY = 8
QUALITIES = 8

_SPECIAL = ("[pad]", "[begin]", "[decide]")
_NUMBERS = (
    *(f"odd:{d}" for d in range(DIGIT_BASE)),
    *(f"power:{e}" for e in range(MAX_POWER + 1)),
    "zero",
    "minus",
    "digits:2",
    "digits:3",
    "digits:4",
)
_DTYPES = tuple(
    f"dtype:{name}"
    for name in (
        *("float64", "float32", "float16", "bfloat16", "float8", "int64", "int32", "int16"),
        *("int8", "int4", "uint64", "uint32", "uint16", "uint8", "bool", "other"),
    )
)
_HARDWARE = (
    *("device:cpu", "device:cuda", "vector", "cores", "l1", "l2", "l3"),
    *(f"isa:{i}" for i in ("sse", "avx2", "avx512", "avx512vnni", "neon", "dotprod", "rv64")),
    *(f"isa:{i}" for i in ("rvv", "sm", "generic")),
)
_STRUCTURE = (
    *("block", "read", "write", "dim", "opaque", "argument", "more"),
    *("S", "R", "O"),
    *(f"it:{i}" for i in range(MAX_ITERATORS)),
    *(f"block:{i}" for i in range(-1, MAX_BLOCKS)),
)
_OPS = tuple(
    f"op:{name}"
    for name in (
        *("add", "sub", "mul", "div", "max", "min", "cast", "select", "compare", "if_then_else"),
        *("exp", "log", "tanh", "erf", "sqrt", "rsqrt", "pow", "sigmoid", "sin", "cos", "floor"),
        *("ceil", "round", "abs", "fabs", "shift_left", "shift_right", "bitwise_and"),
        *("bitwise_or", "q_multiply_shift", "max_value", "min_value", "floordiv", "floormod"),
        *("trunc", "nearbyint", "isnan", "isinf", "clz", "popcount", "reinterpret", "other"),
    )
)
_SKETCH = (
    *(f"sketch:{i}" for i in range(MAX_SKETCHES)),
    *("tiling", "fuse_at", "rfactor", "cachewrite", "cacheread", "transformlayout"),
    *("decomposereduction", "tensorize"),
    *(f"level:{i}" for i in range(MAX_LEVELS)),
)
_DECISIONS = (
    *(f"quality:{i}" for i in range(QUALITIES)),
    "quality:any",
    *(f"tile:{n}" for n in range(MAX_ARITY + 1)),
    *(f"partition:{n}" for n in range(MAX_ARITY + 1)),
    *("choose", "parallel", "locate", "at:inline", "at:root"),
    *(f"at:{i}" for i in range(MAX_LOCATIONS)),
)

WORDS: tuple[str, ...] = (
    *_SPECIAL,
    *_NUMBERS,
    *_DTYPES,
    *_HARDWARE,
    *_STRUCTURE,
    *_OPS,
    *_SKETCH,
    *_DECISIONS,
)
IDS: dict[str, int] = {word: index for index, word in enumerate(WORDS)}
SIZE = len(WORDS)
PAD = IDS["[pad]"]
FINGERPRINT = hashlib.sha256("\n".join(WORDS).encode()).hexdigest()[:16]

if len(IDS) != len(WORDS):
    raise AssertionError("the vocabulary contains a word twice")


def known(word: str, fallback: str) -> str:
    """`word` if it is in the vocabulary, else `fallback`."""
    return word if word in IDS else fallback


def ids(words: list[str] | tuple[str, ...]) -> list[int]:
    """The ids of `words`. Raises `KeyError` for a word that is not in the vocabulary."""
    return [IDS[word] for word in words]
