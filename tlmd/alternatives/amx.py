"""Products of tiles of words by the CPU's matrix unit (Intel AMX), as intrinsics.

A word is a pair of bfloat16 numbers, or four bytes.

A float32 number is nearly the sum of two bfloat16 numbers, its parts. The products of such parts,
without that of the two small ones, are nearly as exact as those of float32: their errors are about
2**-16 of a product (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence
Datatype For Higher-Precision Computations", ARITH 2019).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tlmd.alternatives import bfloat16, int8
from tlmd.alternatives.amx_code import BF16, EDGE, INT8, NAME, PRODUCTS, code
from tlmd.alternatives.words import WORD

FEATURES = {BF16: ("amx-tile", "amx-bf16"), INT8: ("amx-tile", "amx-int8")}
"""What a CPU must have, by the numbers that it multiplies."""
BYTES = {BF16: 1, INT8: 4}
"""Elements of a word of the data: they are words, or bytes."""
_NAMES = re.compile(rf"{NAME}_(bf16|int8)_(\d)x(\d)x(\d+)_(\d)")


@dataclass(frozen=True)
class Kernel:
    """An intrinsic that adds products to ``rows x columns`` tiles of sums.

    Its sums are ``[rows * 16, columns * 16]`` float32 or int32 numbers. Its data are
    ``[rows * 16, parts, steps * 16]`` pairs, or bytes four times as many, its weights words
    ``[steps * 16, parts, columns * 16]``.
    """

    numbers: str
    """`BF16`, or `INT8` with data that have no sign."""

    rows: int
    columns: int
    steps: int
    parts: int

    @property
    def dot(self) -> str:
        """The name of the intrinsic."""
        tiles = f"{self.rows}x{self.columns}x{self.steps}"
        return f"{NAME}_{self.numbers}_{tiles}_{self.parts}"

    @property
    def description(self) -> str:
        """What it computes, as TVMScript."""
        terms = " + ".join(f"({self._product(*parts)})" for parts in PRODUCTS[self.parts])
        return f"""{self._head()}
        for row, column, word in T.grid({", ".join(map(str, self._extents))}):
            with T.sblock("update"):
                i, j, k = T.axis.remap("SSR", [row, column, word])
                c[i, j] = c[i, j] + ({terms})
"""

    @property
    def implementation(self) -> str:
        """How it is computed, as TVMScript."""
        return f"""{self._head()}
        T.evaluate(
            T.call_extern(
                "int32",
                "{self._function}",
                T.int64({self.steps}),
                T.address_of(c[0, 0]),
                c_row,
                T.address_of(a[0, 0, 0]),
                T.truncdiv(a_row, T.int64({BYTES[self.numbers]})),
                T.truncdiv(a_part, T.int64({BYTES[self.numbers]})),
                T.address_of(b[0, 0, 0]),
                b_row,
                T.int64(1),
                T.address_of(b[0, 0, 0]),
                T.int64(0),
            )
        )
"""

    @property
    def imported(self) -> str:
        """LLVM that a program which uses the intrinsic imports."""
        return code(self._function, self.numbers, self.rows, self.columns, self.parts)

    @property
    def _function(self) -> str:
        return f"{NAME}_{self.numbers}_{self.rows}x{self.columns}_{self.parts}"

    def _product(self, of_data: int, of_weights: int) -> str:
        word = f"b[k, {of_weights}, j]"
        if self.numbers == INT8:
            return int8.product_text(lambda index: f"a[i, {of_data}, k * 4 + {index}]", word)
        return bfloat16.product_text(f"a[i, {of_data}, k]", word)

    @property
    def _extents(self) -> tuple[int, int, int]:
        """Rows and columns of numbers, and words of a sum."""
        return self.rows * EDGE, self.columns * EDGE, self.steps * EDGE

    def _head(self) -> str:
        rows, columns, words = self._extents
        elements = words * BYTES[self.numbers]
        shapes = (rows, self.parts, elements), (words, self.parts, columns), (rows, columns)
        kinds = (WORD, WORD, "float32") if self.numbers == BF16 else ("uint8", WORD, "int32")
        matched = "".join(
            f"""
    {name}_row, {name}_part = T.int64(), T.int64()
    {name} = T.match_buffer(
        {name}_data,
        {shape},
        "{kind}",
        offset_factor=1,
        strides=[{name}_row, {f"{name}_part, " if len(shape) > 2 else ""}1],
    )"""
            for name, shape, kind in zip("abc", shapes, kinds, strict=True)
        )
        a, b, c = (
            f"{name}[{', '.join(f'0:{extent}' for extent in shape)}]"
            for name, shape in zip("abc", shapes, strict=True)
        )
        return f"""
@T.prim_func(s_tir=True)
def function(a_data: T.handle, b_data: T.handle, c_data: T.handle):{matched}
    with T.sblock("root"):
        T.reads({c}, {a}, {b})
        T.writes({c})"""


def named(text: str) -> list[Kernel]:
    """The kernels whose names are in a text, such as that of a trace."""
    found = dict.fromkeys(_NAMES.findall(text))
    return [Kernel(numbers, *map(int, tiles)) for numbers, *tiles in found]
