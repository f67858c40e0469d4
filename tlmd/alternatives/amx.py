"""Products of tiles of pairs of bfloat16 by the CPU's matrix unit (Intel AMX), as intrinsics.

A float32 number is nearly the sum of two bfloat16 numbers, its parts. The products of such parts,
without that of the two small ones, are nearly as exact as those of float32: their errors are about
2**-16 of a product (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence
Datatype For Higher-Precision Computations", ARITH 2019).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tlmd.alternatives import bfloat16
from tlmd.alternatives.amx_code import EDGE, NAME, PRODUCTS, code
from tlmd.alternatives.words import WORD, register

FEATURES = ("amx-tile", "amx-bf16")
"""What a CPU must have."""
_MOST_TILES = 4  # of sums
_NAMES = re.compile(rf"{NAME}_(\d)x(\d)x(\d+)_(\d)")


@dataclass(frozen=True)
class Kernel:
    """An intrinsic that adds products to ``rows x columns`` tiles of sums.

    Its sums are ``[rows * 16, columns * 16]`` float32 numbers. Its data are ``[rows * 16, parts,
    steps * 16]`` pairs, its weights ``[steps * 16, parts, columns * 16]``.
    """

    rows: int
    columns: int
    steps: int
    parts: int

    @property
    def dot(self) -> str:
        """The name of the intrinsic."""
        return f"{NAME}_{self.rows}x{self.columns}x{self.steps}_{self.parts}"

    @property
    def description(self) -> str:
        """What it computes, as TVMScript."""
        terms = " + ".join(
            f"""({bfloat16.product_text(f"a[i, {of_data}, k]", f"b[k, {of_weights}, j]")})"""
            for of_data, of_weights in PRODUCTS[self.parts]
        )
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
                a_row,
                a_part,
                T.address_of(b[0, 0, 0]),
                b_row,
                T.address_of(b[0, 0, 0]),
                T.int64(0),
            )
        )
"""

    @property
    def imported(self) -> str:
        """LLVM that a program which uses the intrinsic imports."""
        return code(self._function, self.rows, self.columns, self.parts)

    def register(self) -> None:
        """Register the intrinsic with TVM. Idempotent."""
        register(self)

    @property
    def _function(self) -> str:
        return f"{NAME}_{self.rows}x{self.columns}_{self.parts}"

    @property
    def _extents(self) -> tuple[int, int, int]:
        """Rows and columns of numbers, and words of a sum."""
        return self.rows * EDGE, self.columns * EDGE, self.steps * EDGE

    def _head(self) -> str:
        rows, columns, words = self._extents
        shapes = (rows, self.parts, words), (words, self.parts, columns), (rows, columns)
        kinds = (WORD, WORD, "float32")
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
    return [Kernel(*map(int, numbers)) for numbers in found]
