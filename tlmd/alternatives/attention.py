"""Attention as one program: scores, softmax and context of a block of rows stay in the caches.

A block of rows has all its scores at once (a row-block softmax). Keys are transposed into panels of
some vectors. Rows and keys are padded to what the kernels divide: rows too many repeat the last one
and are not written, keys too many have the weight 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import tvm
from tvm import te, tirx, topi

from tlmd.alternatives import bfloat16
from tlmd.alternatives.contraction import DTYPE, axis, long
from tlmd.alternatives.implementation import Implementation
from tlmd.alternatives.packed import clamped, multiple, padded_rows, panel_vectors
from tlmd.alternatives.transforms import ATTENTION_BF16

KEYS, SCORES, BIASED, MAXIMA, MAXIMUM, SHIFTED, WEIGHTS, SUMS, SUM, CONTEXT, PLACED = (
    f"attention_{stage}"
    for stage in (
        *("keys", "scores", "biased", "maxima", "maximum", "shifted", "weights"),
        *("sums", "sum", "context", "placed"),
    )
)
"""Names of the blocks: `MAXIMA` and `SUMS` are those of each lane of a row."""
QUERY, SHORT_WEIGHTS, VALUES = "attention_query", "attention_short_weights", "attention_values"
"""Blocks that round to pairs of bfloat16."""


@dataclass(frozen=True)
class Operand:
    """A tensor of four dimensions in any order."""

    order: str
    """A permutation of ``BHLD``: images, heads, rows (or keys), elements of a head."""

    shape: tuple[int, ...]

    def size(self, letter: str) -> int:
        """The extent of one dimension."""
        return self.shape[self.order.index(letter)]

    def read(self, tensor: Any, **at: Any) -> Any:
        """An element, by the letters of the dimensions."""
        return tensor[tuple(at[letter] for letter in self.order)]


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

    @classmethod
    def from_json(cls, text: str) -> Attention:
        """What `to_json` has written."""
        fields = json.loads(text)
        for name in ("query", "key", "value"):
            one = fields[name]
            fields[name] = Operand(one["order"], tuple(one["shape"]))
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
        return panel_vectors(-(-self.keys // self.lanes)) * self.lanes

    @property
    def padded_keys(self) -> int:
        """The keys of all panels."""
        return multiple(self.keys, self.panel)

    def __call__(self, query: Any, key: Any, value: Any, *bias: Any) -> Any:
        """The result as a tensor expression. `bias`: ``[B * H or 1, M or 1, L or 1]`` or none."""
        scores = self._scores(query, key)
        if bias or self.scale != 1:
            scores = self._biased(scores, *bias)
        maximum = self._reduced(scores, _maximum, MAXIMA, MAXIMUM)
        weights = self._weights(scores, maximum)
        total = self._reduced(weights, te.sum, SUMS, SUM)
        context = self._context(weights, value)
        heads = self.query.size("H")

        def placed(image: Any, row: Any, head: Any, column: Any) -> Any:
            group = image * heads + head
            found = context[group, row, column] / total[group, row]
            if not self.is_safe:
                return found
            has_keys = maximum[group, row] > tirx.const(-math.inf, DTYPE)
            return tirx.Select(has_keys, found, tirx.const(0, DTYPE))

        shape = (self.query.size("B"), self.rows, heads, self.value.size("D"))
        return te.compute(long(shape), placed, name=PLACED)

    def _stage(self, extents: tuple[int, ...], element: Callable[..., Any], name: str) -> Any:
        """A tensor ``[images * heads, padded rows, ...]``."""
        groups = self.query.size("B") * self.query.size("H")
        return te.compute(long((groups, padded_rows(self.rows), *extents)), element, name=name)

    def _head(self, group: Any, operand: Operand) -> dict[str, Any]:
        heads = self.query.size("H")
        shared = heads // operand.size("H")
        return {"B": group // heads, "H": group % heads // shared}

    def _row(self, row: Any) -> Any:
        return clamped(row, self.rows, padded_rows(self.rows))

    def _key(self, index: Any) -> Any:
        return clamped(index, self.keys, self.padded_keys)

    def _of_key(self, operand: Operand, tensor: Any, group: Any, index: Any, column: Any) -> Any:
        """An element of a key or a value; `group` counts the operand's own heads."""
        heads = operand.size("H")
        at = {"B": group // heads, "H": group % heads, "L": self._key(index)}
        return operand.read(tensor, **at, D=column)

    def _scores(self, query: Any, key: Any) -> Any:
        depth, groups = self.key.size("D"), self.key.size("B") * self.key.size("H")
        shared = self.query.size("H") // self.key.size("H")
        panels = te.compute(
            long((groups, self.padded_keys // self.panel, depth // self._together, self.panel)),
            lambda g, p, d, c: self._one_or_pair(
                lambda at: self._of_key(self.key, key, g, p * self.panel + c, at), d
            ),
            name=KEYS,
        )
        element_axis = axis(depth // self._together, "d")

        def of_query(group: Any, row: Any, index: Any) -> Any:
            at = self._head(group, self.query) | {"L": self._row(row)}
            return self._one_or_pair(lambda d: self.query.read(query, **at, D=d), index)

        if self.bf16:
            of_query = self._stage((depth // self._together,), of_query, QUERY)

        def score(group: Any, row: Any, index: Any) -> Any:
            element = of_query(group, row, element_axis)
            of_keys = panels[group // shared, index // self.panel, element_axis, index % self.panel]
            return te.sum(self._product(element, of_keys), axis=element_axis)

        return self._stage((self.padded_keys,), score, SCORES)

    @property
    def _together(self) -> int:
        """Elements that are multiplied as one."""
        return bfloat16.PAIR if self.bf16 else 1

    def _product(self, one: Any, other: Any) -> Any:
        return bfloat16.product(one, other) if self.bf16 else one * other

    def _one_or_pair(self, element: Callable[[Any], Any], index: Any) -> Any:
        """``element(index)``, or the pair with this index."""
        if not self.bf16:
            return element(index)
        first = index * bfloat16.PAIR
        return bfloat16.pair(element(first), element(first + 1))

    def _biased(self, scores: Any, *bias: Any) -> Any:
        def biased(group: Any, row: Any, index: Any) -> Any:
            value = scores[group, row, index] * tirx.const(self.scale, DTYPE)
            for one in bias:
                at = (group, self._row(row), self._key(index))
                sizes = (int(extent) for extent in one.shape)
                value += one[tuple(0 if n == 1 else i for n, i in zip(sizes, at, strict=True))]
            return value

        return self._stage((self.padded_keys,), biased, BIASED)

    def _weights(self, scores: Any, maximum: Any) -> Any:
        """``exp(score - maximum of its row)``; 0 for keys too many."""
        shifted = self._stage(
            (self.padded_keys,), lambda g, i, j: scores[g, i, j] - maximum[g, i], SHIFTED
        )
        weights = topi.fast_exp(shifted)
        zero = tirx.const(0, DTYPE)

        def weight(group: Any, row: Any, index: Any) -> Any:
            value = weights[group, row, index]
            is_key = index < self.keys
            return tirx.Select(is_key, value, zero) if self.padded_keys > self.keys else value

        return self._stage((self.padded_keys,), weight, WEIGHTS)

    def _reduced(self, values: Any, combine: Any, lanes: str, name: str) -> Any:
        """A value for each row, in two steps, so that the first one works on vectors."""
        vectors, lane = axis(self.padded_keys // self.lanes, "v"), axis(self.lanes, "lane")
        parts = self._stage(
            (self.lanes,),
            lambda g, i, j: combine(values[g, i, vectors * self.lanes + j], axis=vectors),
            lanes,
        )
        return self._stage((), lambda g, i: combine(parts[g, i, lane], axis=lane), name)

    def _context(self, weights: Any, value: Any) -> Any:
        if self.bf16:
            return self._short_context(weights, value)
        keys = axis(self.keys, "j")

        def element(group: Any, row: Any, column: Any) -> Any:
            at = self._head(group, self.value)
            of_values = self.value.read(value, **at, L=keys, D=column)
            return te.sum(weights[group, row, keys] * of_values, axis=keys)

        return self._stage((self.value.size("D"),), element, CONTEXT)

    def _short_context(self, weights: Any, value: Any) -> Any:
        """The same of pairs; keys too many have the weight 0."""
        pairs, columns = self.padded_keys // bfloat16.PAIR, self.value.size("D")
        heads = self.value.size("H")
        shared = self.query.size("H") // heads
        short = self._stage(
            (pairs,),
            lambda g, i, j: self._one_or_pair(lambda at: weights[g, i, at], j),
            SHORT_WEIGHTS,
        )
        values = te.compute(
            long((self.value.size("B") * heads, pairs, columns)),
            lambda g, j, c: self._one_or_pair(
                lambda at: self._of_key(self.value, value, g, at, c), j
            ),
            name=VALUES,
        )
        keys = axis(pairs, "j")

        def element(group: Any, row: Any, column: Any) -> Any:
            product = bfloat16.product(
                short[group, row, keys], values[group // shared, keys, column]
            )
            return te.sum(product, axis=keys)

        return self._stage((columns,), element, CONTEXT)


_maximum = te.comm_reducer(
    lambda one, other: tirx.max(one, other),
    lambda dtype: tirx.const(-math.inf, dtype),
    "maximum",
)
"""TVM's own begins with the least finite number."""


def short_attention(direct: Implementation, attention: Attention) -> Implementation | None:
    """The program in bfloat16; None where heads of `attention` are no whole vectors of pairs."""
    least = bfloat16.PAIR * attention.lanes
    if attention.key.size("D") % least or attention.value.size("D") % least:
        return None
    *given, _ = direct.module["main"].params
    tensors = [te.placeholder(p.ty.shape, DTYPE, name=f"p{i}") for i, p in enumerate(given)]
    made = te.create_prim_func([*tensors, replace(attention, bf16=True)(*tensors)])
    work = direct.work / bfloat16.PAIR
    return Implementation(ATTENTION_BF16, tvm.IRModule({"main": made}), direct.flops, work)
