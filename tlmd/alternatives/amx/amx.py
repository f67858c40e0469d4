"""Products of tiles of words by the CPU's matrix unit (Intel AMX), as intrinsics.

A word is a pair of bfloat16 numbers, or four bytes.

A float32 number is nearly the sum of two bfloat16 numbers, its parts. The products of such parts,
without that of the two small ones, are nearly as exact as those of float32: their errors are about
2**-16 of a product (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence
Datatype For Higher-Precision Computations", ARITH 2019).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from tlmd.alternatives.amx import amx_code
from tlmd.alternatives.amx.amx_code import BF16, EDGE, INT8, NAME, PRODUCTS, Window
from tlmd.alternatives.words import bfloat16, int8
from tlmd.alternatives.words.words import WORD

FEATURES = {BF16: ("amx-tile", "amx-bf16"), INT8: ("amx-tile", "amx-int8")}
"""What a CPU must have, by the numbers that it multiplies."""
BYTES = {BF16: 1, INT8: 4}
"""Elements of a word of the data: they are words, or bytes."""
_NAMES = re.compile(rf"{NAME}_(bf16|int8)_(\d)x(\d)x(\d+)_(\d)((?:_\d+by\d+)*)")
_WITHOUT_STEPS = re.compile(rf"{NAME}_(bf16|int8)_(\d)x(\d)()_(\d)()")
_TAPS = re.compile(r"_(\d+)by(\d+)")


@dataclass(frozen=True)
class Kernel:
    """An intrinsic that adds products to ``rows x columns`` tiles of sums.

    Its sums are ``[rows * 16, columns * 16]`` float32 or int32 numbers. Its data are
    ``[rows * 16, parts, steps * 16]`` pairs, or bytes four times as many, its weights words
    ``[steps * 16, parts, columns * 16]``. With a `window` the weights are such of each tap, one
    after the other, and the data have as many rows more as there are from the first tap to the
    last one.
    """

    numbers: str
    """`BF16`, or `INT8` with data that have no sign."""

    rows: int
    columns: int
    steps: int
    parts: int
    window: tuple[tuple[int, int], ...] = ()
    """The taps of a convolution whose data are rows of a grid."""

    @property
    def dot(self) -> str:
        """The name of the intrinsic."""
        tiles = f"{self.rows}x{self.columns}x{self.steps}"
        return f"{NAME}_{self.numbers}_{tiles}_{self.parts}{self._taps}"

    @property
    def all_steps(self) -> int:
        """Tiles of a row of tiles of data, of all taps."""
        return self.steps * math.prod(count for count, _ in self.window)

    @property
    def description(self) -> str:
        """What it computes, as TVMScript."""
        terms = " + ".join(f"({self._product(*parts)})" for parts in PRODUCTS[self.parts])
        rows, columns, words = self._extents
        counts, taps = [count for count, _ in self.window], self._indices("tap")
        grid, loops = (rows, columns, *counts, words), ("row", "column", *taps, "word")
        axes = "i", "j", *self._indices("t"), "k"
        return f"""{self._head()}
        for {", ".join(loops)} in T.grid({", ".join(map(str, grid))}):
            with T.sblock("update"):
                {", ".join(axes)} = T.axis.remap("SS{"R" * (len(axes) - 2)}", [{", ".join(loops)}])
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
                T.int64({self.all_steps}),
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
        return amx_code.code(self._function, *self._coded)

    @property
    def ready(self) -> str:
        """LLVM of the function that programs call where the unit is ready for several calls."""
        return amx_code.definition(self._function + amx_code.READY, *self._coded)

    @property
    def _coded(self) -> tuple[Any, ...]:
        return self.numbers, self.rows, self.columns, self.parts, self.window, self.steps

    @property
    def _function(self) -> str:
        if self.window:  # its code knows the steps of a tap
            return self.dot
        return f"{NAME}_{self.numbers}_{self.rows}x{self.columns}_{self.parts}"

    @property
    def _taps(self) -> str:
        return "".join(f"_{count}by{pitch}" for count, pitch in self.window)

    def _indices(self, name: str) -> list[str]:
        """A name for each dimension of the window."""
        return [f"{name}{place}" for place in range(len(self.window))]

    def _product(self, of_data: int, of_weights: int) -> str:
        taps = list(zip(self._indices("t"), self.window, strict=True))
        row = " + ".join(["i", *(f"{tap} * {pitch}" for tap, (_, pitch) in taps)])
        tap = "0"
        for index, (count, _) in taps:
            tap = f"({tap} * {count} + {index})"
        word = f"b[{tap} * {self._extents[2]} + k, {of_weights}, j]"
        if self.numbers == INT8:
            return int8.product_text(lambda index: f"a[{row}, {of_data}, k * 4 + {index}]", word)
        return bfloat16.product_text(f"a[{row}, {of_data}, k]", word)

    @property
    def _extents(self) -> tuple[int, int, int]:
        """Rows and columns of numbers, and words of a tap's sum."""
        return self.rows * EDGE, self.columns * EDGE, self.steps * EDGE

    def _head(self) -> str:
        rows, columns, words = self._extents
        data = rows + reach(self.window), self.parts, words * BYTES[self.numbers]
        shapes = data, (self.all_steps * EDGE, self.parts, columns), (rows, columns)
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


def reach(window: Window) -> int:
    """Rows of the data from the first tap to the last one."""
    return sum((count - 1) * pitch for count, pitch in window)


def named(text: str) -> list[Kernel]:
    """The kernels whose names are in a text, such as that of a trace."""
    names = dict.fromkeys(_NAMES.findall(text))
    return [_kernel(numbers, taps, *map(int, tiles)) for numbers, *tiles, taps in names]


def of_function(name: str) -> Kernel:
    """A kernel of the function with this name; the number of its steps may be another one."""
    parts = _NAMES.fullmatch(name) or _WITHOUT_STEPS.fullmatch(name)
    if parts is None:
        raise ValueError(f"{name} is not a kernel of the matrix unit")
    numbers, *tiles, taps = parts.groups()
    return _kernel(numbers, taps, *(int(one or 1) for one in tiles))


def _kernel(numbers: str, taps: str, rows: int, columns: int, steps: int, parts: int) -> Kernel:
    window = tuple((int(count), int(pitch)) for count, pitch in _TAPS.findall(taps))
    return Kernel(numbers, rows, columns, steps, parts, window)
