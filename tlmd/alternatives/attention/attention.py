"""Attention as one program: scores, softmax and context of a block of rows stay in the caches.

A block of rows has all its scores at once (a row-block softmax). Keys are transposed into panels of
some vectors. Rows and keys are padded to what the kernels divide: rows too many repeat the last one
and are not written, keys too many have the weight 0.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import tvm
from tvm import te, tirx

from tlmd.alternatives.alternative import DirectProgram, Implementation
from tlmd.alternatives.attention import softmax
from tlmd.alternatives.attention.attention_operand import Operand
from tlmd.alternatives.attention.softmax import LOG2_E, limits, maximum
from tlmd.alternatives.contraction import DTYPE
from tlmd.alternatives.expressions import axis, clamped, long
from tlmd.alternatives.kernel import VectorUnit, multiple
from tlmd.alternatives.words import bfloat16

KEYS, SCORES, BIASED, LIMITS, SHIFTED, WEIGHTS, CONTEXT, PLACED = (
    f"attention_{stage}"
    for stage in ["keys", "scores", "biased", "limits", "shifted", "weights", "context", "placed"]
)
"""Names of the blocks."""
MAXIMA = ("attention_maxima", "attention_few_maxima", "attention_maximum")
SUMS = ("attention_sums", "attention_few_sums", "attention_sum")
"""Blocks of maxima and of sums: of each lane of a row, of a few lanes, of the row."""
QUERY, SHORT_WEIGHTS, VALUES = "attention_query", "attention_short_weights", "attention_values"
"""Blocks that round to pairs of bfloat16, and the one that copies many values."""
_FEW_LANES = 4
_FEW_KEYS = 256
"""Most values that stay in the near caches although their rows are apart: benchmarks/LOG.md,
"Attention: values of more than 256 keys are copied"."""


@dataclass(frozen=True)
class Attention:
    """``softmax(query key^T * scale + bias) value``, float32, result ``[B, M, H, D]``."""

    query: Operand
    key: Operand
    """Keys and values may have fewer heads; then successive heads of the query share one."""

    value: Operand
    scale: float
    """Positive."""

    is_safe: bool
    """Whether a row whose scores are all minus infinity gives 0; else it gives NaN."""

    lanes: int
    """Elements of a vector of the target; D must be a multiple."""

    bf16: bool = False
    """Round the operands of both products to bfloat16, in pairs; D must be a multiple of two
    vectors then."""

    tensors: tuple[int, int, int] = (0, 1, 2)
    """Positions of the tensors that have query, key and value."""

    registers: int = 32
    """Vector registers of the target."""

    @classmethod
    def from_json(cls, text: str) -> Attention:
        """What `to_json` has written."""
        fields = json.loads(text)
        for name in ("query", "key", "value"):
            one = fields[name]
            fields[name] = Operand(**{**one, "shape": tuple(one["shape"])})
        fields["tensors"] = tuple(fields.get("tensors", cls.tensors))
        return cls(**fields)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def rows(self) -> int:
        """M, the rows of the query and of the result."""
        return self.query.size("L")

    @property
    def keys(self) -> int:
        """L, the keys of a row."""
        return self.key.size("L")

    @property
    def panel(self) -> int:
        """Keys that lie together."""
        return self._padded[1]

    @property
    def _padded(self) -> tuple[int, int]:
        """Rows in all, and keys of a panel."""
        return VectorUnit(self.lanes, self.registers).kernels.pad_both(self.rows, self.keys)

    @property
    def padded_keys(self) -> int:
        """The keys of all panels."""
        return multiple(self.keys, self.panel)

    def has_heads_of(self, least: int) -> bool:
        """Whether so many elements divide those of a head of the keys and of the values."""
        return not any(one.size("D") % least for one in (self.key, self.value))

    def implementation(self, direct: DirectProgram, work: float) -> Implementation:
        """The program, with the parameters of the direct one. `work`: over the direct one's."""
        *given, _ = direct.module["main"].params
        tensors = [te.placeholder(p.ty.shape, DTYPE, name=f"p{i}") for i, p in enumerate(given)]
        module = tvm.IRModule({"main": te.create_prim_func([*tensors, self(*tensors)])})
        return Implementation(module, direct.flops, direct.work * work)

    def __call__(self, *given: Any) -> Any:
        """The result as a tensor expression.

        `given`: the tensors, then perhaps a bias ``[B * H or 1, M or 1, L or 1]``.
        """
        query, key, value = (given[index] for index in self.tensors)
        bias = given[max(self.tensors) + 1 :]
        # Keys are multiplied when they are packed, so that scores need no pass of their own. A bias
        # can be the least finite number, which a factor would make infinite.
        unit = 1.0 if bias else LOG2_E
        scores = self._scores(query, key, self.scale * unit)
        if bias:
            scores = self._biased(scores, *bias)
        highest = self._reduced(scores, self.padded_keys, maximum, *MAXIMA)
        weights = self._weights(scores, highest, LOG2_E / unit)
        summed = weights
        if self.bf16:
            weights = self._pairs(weights)
            summed = partial(self._added, weights)
        total = self._reduced(summed, int(weights.shape[-1]), te.sum, *SUMS)
        context = self._context(weights, value)
        heads = self.query.size("H")

        def placed(image: Any, row: Any, head: Any, column: Any) -> Any:
            group = image * heads + head
            # One division for each row; LLVM moves it out of the loop.
            element = context[group, row, column] * (tirx.const(1, DTYPE) / total[group, row])
            if not self.is_safe:
                return element
            has_keys = highest[group, row] > tirx.const(-math.inf, DTYPE)
            return tirx.Select(has_keys, element, tirx.const(0, DTYPE))

        shape = (self.query.size("B"), self.rows, heads, self.value.size("D"))
        return te.compute(long(shape), placed, name=PLACED)

    def _stage(self, extents: tuple[int, ...], element: Callable[..., Any], name: str) -> Any:
        """A tensor ``[images * heads, padded rows, ...]``."""
        shape = self.query.groups, self._padded[0], *extents
        return te.compute(long(shape), element, name=name)

    def _head(self, group: Any, operand: Operand) -> dict[str, Any]:
        heads = self.query.size("H")
        shared = heads // operand.size("H")
        return {"B": group // heads, "H": group % heads // shared}

    def _row(self, row: Any) -> Any:
        return clamped(row, self.rows, self._padded[0])

    def _key(self, index: Any) -> Any:
        return clamped(index, self.keys, self.padded_keys)

    def _of_key(self, operand: Operand, tensor: Any, group: Any, index: Any, column: Any) -> Any:
        """An element of a key or a value; `group` counts the operand's own heads."""
        heads = operand.size("H")
        at = {"B": group // heads, "H": group % heads, "L": self._key(index)}
        return operand.read(tensor, **at, D=column)

    def _scores(self, query: Any, key: Any, factor: float) -> Any:
        depth = self.key.size("D") // (bfloat16.PAIR if self.bf16 else 1)
        shared, times = self.query.size("H") // self.key.size("H"), tirx.const(factor, DTYPE)
        panels = te.compute(
            long((self.key.groups, self.padded_keys // self.panel, depth, self.panel)),
            lambda g, p, d, c: self._one_or_pair(
                lambda at: self._of_key(self.key, key, g, p * self.panel + c, at) * times, d, depth
            ),
            name=KEYS,
        )
        element_axis = axis(depth, "d")
        product = bfloat16.product if self.bf16 else operator.mul

        def of_query(group: Any, row: Any, index: Any) -> Any:
            at = self._head(group, self.query) | {"L": self._row(row)}
            return self._one_or_pair(lambda d: self.query.read(query, **at, D=d), index, depth)

        if self.bf16:
            of_query = self._stage((depth,), of_query, QUERY)

        def score(group: Any, row: Any, index: Any) -> Any:
            element = of_query(group, row, element_axis)
            of_keys = panels[group // shared, index // self.panel, element_axis, index % self.panel]
            return te.sum(product(element, of_keys), axis=element_axis)

        return self._stage((self.padded_keys,), score, SCORES)

    def _one_or_pair(self, element: Callable[[Any], Any], index: Any, count: int) -> Any:
        """``element(index)``, or the pair with this index of `count` pairs."""
        if not self.bf16:
            return element(index)
        return bfloat16.pair(element(index), element(index + count))

    def _biased(self, scores: Any, *bias: Any) -> Any:
        def biased(group: Any, row: Any, index: Any) -> Any:
            value = scores[group, row, index]
            for one in bias:
                at = (group, self._row(row), self._key(index))
                sizes = (int(extent) for extent in one.shape)
                value += one[tuple(0 if n == 1 else i for n, i in zip(sizes, at, strict=True))]
            return value

        return self._stage((self.padded_keys,), biased, BIASED)

    def _weights(self, scores: Any, highest: Any, unit: float) -> Any:
        """``2 ** (score - the highest of its row)``, in this `unit`; 0 for keys too many."""
        is_padded = self.padded_keys > self.keys
        most = limits(self.keys, self.padded_keys, LIMITS) if is_padded else None

        def shifted(group: Any, row: Any, index: Any) -> Any:
            value = scores[group, row, index] - highest[group, row]
            value = value if unit == 1 else value * tirx.const(unit, DTYPE)
            # The limit is first, so that NaN stays NaN.
            return value if most is None else tirx.min(most[index], value)

        exponents = self._stage((self.padded_keys,), shifted, SHIFTED)
        power = self._power()
        return self._stage((self.padded_keys,), lambda *at: power(exponents[at]), WEIGHTS)

    def _power(self) -> Callable[[Any], Any]:
        return softmax.power_of_two_to_truncate if self.bf16 else softmax.power_of_two

    def _reduced(self, values: Any, extent: int, combine: Any, *names: str) -> Any:
        """Combine `extent` values of each row, in three steps with these `names`: of each lane, of
        each of a few lanes, of all. So the first two work on vectors; LLVM gathers to add one."""
        lanes = math.gcd(extent, self.lanes)
        folded = self._folded(values, combine, extent, lanes, names[0])
        if lanes > _FEW_LANES:
            folded = self._folded(folded, combine, lanes, _FEW_LANES, names[1])
            lanes = _FEW_LANES
        lane = axis(lanes, "lane")
        return self._stage((), lambda g, i: combine(folded[g, i, lane], axis=lane), names[2])

    def _folded(self, values: Any, combine: Any, extent: int, lanes: int, name: str) -> Any:
        """Combines values whose places are equal modulo `lanes`."""
        part = axis(extent // lanes, "v")
        return self._stage(
            (lanes,), lambda g, i, j: combine(values(g, i, part * lanes + j), axis=part), name
        )

    def _context(self, weights: Any, value: Any) -> Any:
        """The products of the values and their weights, or of pairs of them."""
        count = int(weights.shape[-1]) if self.bf16 else self.keys
        keys, product = axis(count, "j"), bfloat16.product if self.bf16 else operator.mul
        is_copied = self.bf16 or self.keys > _FEW_KEYS
        values = self._values(value, count) if is_copied else None
        shared = self.query.size("H") // self.value.size("H")

        def element(group: Any, row: Any, column: Any) -> Any:
            if values is None:
                at = self._head(group, self.value)
                of_values = self.value.read(value, **at, L=keys, D=column)
            else:
                of_values = values[group // shared, keys, column]
            return te.sum(product(weights[group, row, keys], of_values), axis=keys)

        return self._stage((self.value.size("D"),), element, CONTEXT)

    def _pairs(self, weights: Any) -> Any:
        """The weights in pairs; keys too many have the weight 0."""
        count = self.padded_keys // bfloat16.PAIR
        pair = bfloat16.truncated_pair
        return self._stage(
            (count,),
            lambda g, i, j: pair(weights[g, i, j], weights[g, i, j + count]),
            SHORT_WEIGHTS,
        )

    def _added(self, short: Any, *at: Any) -> Any:
        return bfloat16.added(short[at])

    def _values(self, value: Any, count: int) -> Any:
        """The values, or `count` pairs of them, one after the other: ``[B * H, count, D]``."""

        def element(group: Any, index: Any, column: Any) -> Any:
            return self._one_or_pair(
                lambda at: self._of_key(self.value, value, group, at, column), index, count
            )

        shape = self.value.groups, count, self.value.size("D")
        return te.compute(long(shape), element, name=VALUES)
