"""Attention for the CPU's matrix unit, which multiplies bfloat16 numbers, or parts of float32 ones.

Queries and the weights of the keys are rows of pairs, keys and values panels of two tiles, as the
data and the weights of `amx_packed`. The weights of the keys are truncated instead of rounded, and
what divides them is the sum of what is left, so nothing is lost on average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from tvm import te, tirx

from tlmd.alternatives.alternative import DirectProgram, Implementation
from tlmd.alternatives.amx.amx_code import BF16, EDGE, PRODUCTS
from tlmd.alternatives.amx.amx_numbers import Numbers, pair_of_parts
from tlmd.alternatives.attention import softmax
from tlmd.alternatives.attention.attention import (
    CONTEXT,
    QUERY,
    SCORES,
    SHORT_WEIGHTS,
    VALUES,
    Attention,
)
from tlmd.alternatives.attention.attention_operand import Operand
from tlmd.alternatives.contraction import DTYPE
from tlmd.alternatives.expressions import axis, long
from tlmd.alternatives.kernel import multiple
from tlmd.alternatives.words import bfloat16

KEYS = "attention_unit_keys"
COLUMNS = 2  # tiles of a panel
PANEL = COLUMNS * EDGE
"""Keys of a panel, and elements of a value."""
_MOST_FILLED = 1.5  # rows of whole tiles over rows


def unit_attention(direct: DirectProgram, kind: Numbers) -> Implementation | None:
    """The program for the CPU's matrix unit.

    None where heads are no whole panels, where rows are much fewer than those of whole tiles, and
    for bytes.
    """
    attention = Attention.from_json(direct.attention)
    if kind.numbers != BF16 or not attention.has_heads_of(PANEL):
        return None
    if multiple(attention.rows, EDGE) > _MOST_FILLED * attention.rows:
        return None
    by_unit = UnitAttention(**{**vars(attention), "bf16": True}, parts=kind.parts)
    return by_unit.implementation(direct, kind.work)


@dataclass(frozen=True)
class UnitAttention(Attention):
    """Attention by the matrix unit; `bf16` is true."""

    parts: int = 1
    """Parts of each number: 1 in bfloat16, 2 in float32."""

    @property
    def _padded(self) -> tuple[int, int]:
        return multiple(self.rows, EDGE), PANEL

    def _scores(self, query: Any, key: Any, factor: float) -> Any:
        depth = self.key.size("D") // bfloat16.PAIR

        def of_query(group: Any, row: Any, part: Any, index: Any) -> Any:
            at = self._head(group, self.query) | {"L": self._row(row)}
            return self._word(lambda d: self.query.read(query, **at, D=d), index, depth, part)

        def of_key(group: Any, panel: Any, index: Any, part: Any, column: Any) -> Any:
            at, times = panel * PANEL + column, tirx.const(factor, DTYPE)
            return self._word(
                lambda d: self._of_key(self.key, key, group, at, d) * times, index, depth, part
            )

        panels = self.padded_keys // PANEL, depth, self.parts, PANEL
        keys = te.compute(long((self.key.groups, *panels)), of_key, name=KEYS)
        queries = self._stage((self.parts, depth), of_query, QUERY)
        return self._products(queries, keys, self.key, self.padded_keys, SCORES)

    def _pairs(self, weights: Any) -> Any:
        count = self.padded_keys // bfloat16.PAIR

        def pair(group: Any, row: Any, part: Any, index: Any) -> Any:
            return self._word(lambda j: weights[group, row, j], index, count, part, True)

        return self._stage((self.parts, count), pair, SHORT_WEIGHTS)

    def _added(self, short: Any, *at: Any) -> Any:
        *row, index = at
        return reduce(add, (bfloat16.added(short[(*row, a, index)]) for a in range(self.parts)))

    def _context(self, weights: Any, value: Any) -> Any:
        count, width = int(weights.shape[-1]), self.value.size("D")

        def of_value(group: Any, panel: Any, index: Any, part: Any, column: Any) -> Any:
            at = panel * PANEL + column
            return self._word(
                lambda k: self._of_key(self.value, value, group, k, at), index, count, part
            )

        shape = self.value.groups, width // PANEL, count, self.parts, PANEL
        values = te.compute(long(shape), of_value, name=VALUES)
        return self._products(weights, values, self.value, width, CONTEXT)

    def _power(self) -> Callable[[Any], Any]:
        return softmax.power_of_two_to_truncate if self.parts == 1 else softmax.power_of_two

    def _word(
        self,
        element: Callable[[Any], Any],
        index: Any,
        count: int,
        part: Any,
        is_truncated: bool = False,
    ) -> Any:
        """The pair with this index of `count`, or one of its parts."""
        numbers = [element(one) for one in (index, index + count)]
        return pair_of_parts(numbers, part if self.parts > 1 else None, is_truncated)

    def _products(self, rows: Any, panels: Any, operand: Operand, width: int, name: str) -> Any:
        """The products of rows of words and the panels of an operand, ``[..., width]``."""
        shared, word = self.query.size("H") // operand.size("H"), axis(int(rows.shape[-1]), "k")

        def value(group: Any, row: Any, column: Any) -> Any:
            own, panel, place = group // shared, column // PANEL, column % PANEL
            terms = (
                bfloat16.product(
                    rows[group, row, a, word.var], panels[own, panel, word.var, b, place]
                )
                for a, b in PRODUCTS[self.parts]
            )
            return te.sum(reduce(add, terms), axis=[word])

        return self._stage((width,), value, name)
