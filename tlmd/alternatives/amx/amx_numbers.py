"""What the CPU's matrix unit multiplies, and how its words are made from channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from tvm import tirx

from tlmd.alternatives.amx.amx_code import BF16, INT8, PRODUCTS
from tlmd.alternatives.amx.tile_rows import BYTES_OF_A_ROW, PAIRS_OF_A_ROW, TileRows, tile_rows
from tlmd.alternatives.contraction import shape_of
from tlmd.alternatives.words import bfloat16, int8


@dataclass(frozen=True)
class Numbers:
    """What the unit multiplies."""

    numbers: str
    parts: int

    work: float
    """Work over that of the direct program; it is tried first."""

    @property
    def given(self) -> str:
        """The dtype of the data."""
        return "float32" if self.numbers == BF16 else "uint8"

    @property
    def of_a_row(self) -> int:
        """Elements of the matrix in a row of a tile."""
        return PAIRS_OF_A_ROW if self.numbers == BF16 else BYTES_OF_A_ROW

    @property
    def of_an_element(self) -> int:
        """Numbers of an element of the matrix."""
        return 2 if self.numbers == BF16 else 1

    def rows(self, weights: Any) -> TileRows | None:
        """How the numbers for such weights lie in rows of tiles; None where none fit."""
        return tile_rows(shape_of(weights), self.of_a_row, self.of_an_element)

    def element(self, number: Callable[[Any], Any], rows: TileRows, part: Any, place: Any) -> Any:
        """An element of the matrix, at a place in the rows of a segment, from its numbers."""
        first, count = place if rows.is_run else _overlapping(place, rows), rows.count
        if self.numbers == INT8:
            return number(first)
        numbers = [number(channel) for channel in (first, first + count)]
        return pair_of_parts(numbers, part if self.parts > 1 else None)

    def products(self, matrix: Any, row: Any, word: Any, weights: Callable[[int], Any]) -> Any:
        """The products of a word of the matrix and one of the weights, of all parts, added.

        `weights`: the word of a part.
        """
        of_parts = PRODUCTS[self.parts]
        return reduce(add, (self._product(matrix, row, a, word, weights(b)) for a, b in of_parts))

    def _product(self, matrix: Any, row: Any, part: int, word: Any, weights: Any) -> Any:
        """The products of a word of the matrix and one of the weights, added."""
        if self.numbers == BF16:
            return bfloat16.product(matrix[row, part, word], weights)
        return int8.product(
            [matrix[row, part, word * int8.QUAD + i] for i in range(int8.QUAD)], weights
        )


def pair_of_parts(numbers: Sequence[Any], part: Any | None, is_truncated: bool = False) -> Any:
    """A pair of two numbers rounded to bfloat16, or of a part of each; `part`: which one.

    `is_truncated`: numbers that are not negative are rounded towards 0.
    """
    pair = bfloat16.truncated_pair if is_truncated else bfloat16.pair
    rest = bfloat16.truncated_rest if is_truncated else bfloat16.rest
    # Bound, because a number may be a choice between an element and the padding.
    names = [tirx.Var(name, "float32") for name in ("lower", "upper")]
    word = pair(*names)
    if part is not None:
        word = tirx.Select(part == 0, word, pair(*map(rest, names)))
    for name, number in zip(names, numbers, strict=True):
        word = tirx.Let(name, number, word)
    return word


def _overlapping(place: Any, rows: TileRows) -> Any:
    """The element of a segment at a place in its rows of tiles; the last row may begin earlier."""
    count, of_a_row = rows.count, rows.of_a_row
    if count % of_a_row == 0:
        return place
    return tirx.min(place // of_a_row * of_a_row, count - of_a_row) + place % of_a_row
